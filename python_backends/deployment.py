"""The deployment file: what is served, on which pools, within which limits.

One YAML file, validated here; the defaults below and in `pools` are the only place where they are written. `tvlm build`
stores the validated result beside the artifacts, so every stage of a composed repository reads the same values.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from python_backends.pools import Device, Pools, Section
from python_backends.validation import explain
from python_backends.yaml_file import read_mapping

BUILT_FILE = "deployment.json"
MOST_IMAGES = 1024  # of one request, whatever a deployment allows
MOST_SIDE = 65_535  # pixels, what JPEG and GIF can say; other formats could ask for a line of 2^31


class DeploymentError(ValueError):
    """The deployment file cannot be used; the message is one line that says which key and why."""


class RequestClass(Section):
    """Settings of one class of requests."""

    ttft_slo_ms: float = Field(gt=0)  # time to first token that this class is promised
    ttft_slo_per_image_ms: float = Field(0, ge=0)  # and more for every picture of a request
    queue_limit: int = Field(256, ge=1)  # accepted and not yet handed to the LLM; more are refused
    weight: float = Field(1.0, gt=0)  # share of the server, among requests that have waited for aging_ms


class RequestClasses(Section):
    """Requests by what they hold."""

    text: RequestClass = RequestClass(ttft_slo_ms=1000)
    image: RequestClass = RequestClass(ttft_slo_ms=3000)
    video: RequestClass = RequestClass(ttft_slo_ms=10_000)


class SchedulerSection(Section):
    """Who goes next, and how much at a time."""

    policy: Literal["slo", "text_first", "fcfs"] = "slo"  # slo: least slack first; fcfs is there to compare with
    budgets: bool = True  # false: only max_running bounds what runs
    encode_budget_tokens: int = Field(10_240, ge=1)  # visual tokens in encode at a time (UnifiedServe's value)
    prefill_budget_tokens: int = Field(2048, ge=1)  # prompt tokens with a replica and not yet prefilled
    # time between tokens: by its mean in each answer steps are sized (pools.text.prefill_slice_tokens); where one in
    # twenty gaps is longer (with slices: three times as long), the encode budget is tightened
    tbt_slo_ms: float = Field(200, gt=0)
    aging_ms: float = Field(5000, ge=0)  # after so long nobody is overtaken by another class any more
    classes: RequestClasses = RequestClasses()


class Cache(Section):
    """What is kept to be used again."""

    # the embedding pool: visual tokens of running requests and of images seen before, oldest out first; 0: none
    encoder_mb: int = Field(64, ge=0)
    # auto: on the GPU that vision and text share, if they share one, so that visual tokens never leave it; else, and
    # always with `host`, in the host's memory
    memory: Literal["auto", "host"] = "auto"


class Limits(Section):
    """What a request may ask for; beyond it a request is refused with the limit's name."""

    images_per_request: int = Field(8, ge=0, le=MOST_IMAGES)
    # text_input, or messages without the pictures in them: 128k tokens of any script, parsed in one go
    text_bytes_mb: float = Field(1.0, gt=0, le=8)
    image_bytes_mb: float = Field(20.0, gt=0)  # encoded size of one image
    image_pixels_mp: float = Field(64.0, gt=0)  # width x height, in millions, read from the header before decoding
    image_side: int = Field(MOST_SIDE, ge=1, le=MOST_SIDE)  # pixels, of the longer one
    # visual tokens of one picture, where the checkpoint keeps its resolution (Qwen2.5-VL): a larger one is scaled down
    # to them. Also what a batch of the encoder holds, whose memory grows with their square
    image_tokens: int = Field(1280, ge=16, le=16_384)  # 1280: about a megapixel, transformers' own default
    context_tokens: int = Field(2048, ge=16)  # prompt, visual tokens and answer together
    default_max_tokens: int = Field(128, ge=1)  # when the request names none


class Admission(Section):
    """When a request is refused for what the server holds already."""

    waiting_visual_mb: float = Field(64, gt=0)  # visual tokens between the begin of encode and the end of prefill
    memory_watermark: float = Field(0.9, gt=0, le=1)  # used share of a memory above which nothing new is taken
    breaker_pressure: float = Field(0.7, gt=0, le=1)  # fill of the fullest queue or memory: the very large are refused
    breaker_tokens: int = Field(4096, ge=1)  # prompt and answer together; more is very large


class Serving(Section):
    """How `tvlm serve` treats its server."""

    grace_s: float = Field(120, ge=0)  # for running requests when it is told to stop; an answer can take minutes
    # a stub that answers no health inference and gets nothing else done for so long, beyond its stage's timeout_ms, is
    # killed and its model loaded again; the router, which has no such limit, within so long
    hang_timeout_s: float = Field(15, gt=0)


class Deployment(Section):
    """A whole deployment file. `checkpoint` is resolved against the file's own folder."""

    checkpoint: Path
    profile: Device = "cpu"  # what pools run on that name no device
    pools: Pools = Pools()
    scheduler: SchedulerSection = SchedulerSection()
    cache: Cache = Cache()
    limits: Limits = Limits()
    admission: Admission = Admission()
    serving: Serving = Serving()

    @property
    def pages_gpu(self) -> int | None:
        """The GPU whose memory the embedding pool is in; None: the host's."""
        vision, text = self.pools.vision, self.pools.text
        shared = self.profile == "gpu" and vision.gpus == text.gpus and len(text.gpus) == 1
        return text.gpus[0] if shared and self.cache.memory == "auto" else None

    @model_validator(mode="before")
    @classmethod
    def _profile_of_pools(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or raw.get("profile") != "gpu" or not isinstance(raw.get("pools", {}), dict):
            return raw
        pools = {name: {} for name in Pools.model_fields} | raw.get("pools", {})
        on_gpu = {name: {"device": "gpu", **pool} if isinstance(pool, dict) else pool for name, pool in pools.items()}
        return {**raw, "pools": on_gpu}

    @model_validator(mode="after")
    def _device_of_profile(self) -> Deployment:
        wrong = [name for name in ("vision", "text") if getattr(self.pools, name).device != self.profile]
        if self.pools.preprocess.device == "gpu" and self.profile == "cpu":
            wrong.append("preprocess")
        if wrong:  # the container of either profile lacks the engines of the other; Pillow is in both
            raise ValueError(f"pools.{wrong[0]}.device must be {self.profile} in profile {self.profile}")
        return self


def load_deployment(path: Path) -> Deployment:
    """Read and validate a deployment file.

    Raises:
        DeploymentError: the file is missing, is not YAML, or a key or value is not acceptable.
    """
    deployment = parse_deployment(read_mapping(path, "deployment file", DeploymentError), str(path))
    checkpoint = deployment.checkpoint
    if not checkpoint.is_absolute():
        checkpoint = Path(os.path.normpath(path.resolve().parent / checkpoint))
    return deployment.model_copy(update={"checkpoint": checkpoint})


def parse_deployment(raw: dict[Any, Any], source: str) -> Deployment:
    """Validate a deployment given as a mapping; `source` names it in errors (DeploymentError)."""
    try:
        return Deployment.model_validate(raw)
    except ValidationError as error:
        raise DeploymentError(f"deployment file {source}: {explain(error, Deployment)}") from None


def load_built_deployment(artifacts: Path) -> Deployment:
    """The deployment that a composed repository was built from (`artifacts/deployment.json`)."""
    return Deployment.model_validate_json((artifacts / BUILT_FILE).read_text())
