"""The deployment file: what is served, on which pools, within which limits.

One YAML file, validated here; the defaults below are the only place where they are written. `tvlm build` stores the
validated result beside the artifacts, so every stage of a composed repository reads the same values.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from python_backends.validation import explain

BUILT_FILE = "deployment.json"


class DeploymentError(ValueError):
    """The deployment file cannot be used; the message is one line that says which key and why."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PreprocessPool(_Section):
    """Media decode: encoded bytes to UINT8 tiles."""

    instances: int = Field(1, ge=1, le=64)  # one Triton instance, with one worker process, each
    threads: int = Field(0, ge=0, le=256)  # small pictures, and as many large ones, at a time; 0: all cores
    batch_size: int = Field(8, ge=1, le=256)
    queue_delay_ms: float = Field(0.0, ge=0, le=1000)  # decoding gains nothing from a batch: never wait for one
    timeout_ms: int = Field(10_000, ge=100)  # a call that takes longer is a hung worker


class VisionPool(_Section):
    """Vision encode: UINT8 tiles to visual tokens."""

    device: Literal["cpu"] = "cpu"
    instances: int = Field(1, ge=1, le=64)
    batch_size: int = Field(8, ge=1, le=256)
    # at most, for pictures that are in decode, to have them in the same batch. The window adapts: none for a lone
    # picture or a full batch, else what a batch was measured to save, so next to none on a CPU; 0: never wait
    queue_delay_ms: float = Field(5.0, ge=0, le=1000)
    precision: Literal["auto", "f32", "bf16"] = "auto"  # auto: bf16 where the CPU has AMX, else f32
    threads: int = Field(0, ge=0, le=256)  # 0: all cores
    nice: int = Field(0, ge=0, le=19)  # over 0: encode takes only the CPU time that the token loop leaves
    timeout_ms: int = Field(30_000, ge=100)


class TextPool(_Section):
    """LLM prefill and decode."""

    device: Literal["cpu"] = "cpu"
    replicas: int = Field(1, ge=1, le=64)  # each one its own Triton model: llm_decoder_0, llm_decoder_1, ...
    max_running: int = Field(32, ge=1, le=1024)  # sequences in the token loop at a time
    prefill_tokens: int = Field(256, ge=16)  # prompt tokens in one step: bounds the gap that a prefill makes
    # prompts longer than this are prefilled in slices of it, so that a short one waits for a slice and not for the
    # whole of a long one; whole KV blocks of 32 tokens; needs prefix_caching; 0: never
    prefill_slice_tokens: int = Field(0, ge=0, multiple_of=32)
    kv_cache_mb: int = Field(512, ge=16)
    prefix_caching: bool = True
    precision: Literal["f32", "bf16"] = "f32"  # f32: greedy tokens match the reference
    threads: int = Field(0, ge=0, le=256)  # 0: all cores
    stall_timeout_ms: int = Field(30_000, ge=1000)  # a step that takes longer is a hung worker

    @field_validator("prefix_caching")
    @classmethod
    def _slices_need_it(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("prefill_slice_tokens"):
            raise ValueError("must be true while prefill_slice_tokens is set: a slice is found in the prefix cache")
        return value


class Pools(_Section):
    """One pool of instances a stage."""

    preprocess: PreprocessPool = PreprocessPool()
    vision: VisionPool = VisionPool()
    text: TextPool = TextPool()


class RequestClass(_Section):
    """Settings of one class of requests."""

    ttft_slo_ms: float = Field(gt=0)  # time to first token that this class is promised
    queue_limit: int = Field(256, ge=1)  # accepted and not yet handed to the LLM; more are refused
    weight: float = Field(1.0, gt=0)  # share of the server, among requests that have waited for aging_ms


class RequestClasses(_Section):
    """Requests by what they hold."""

    text: RequestClass = RequestClass(ttft_slo_ms=1000)
    image: RequestClass = RequestClass(ttft_slo_ms=3000)
    video: RequestClass = RequestClass(ttft_slo_ms=10_000)


class SchedulerSection(_Section):
    """Who goes next, and how much at a time."""

    policy: Literal["slo", "text_first", "fcfs"] = "slo"  # slo: least slack first; fcfs is there to compare with
    budgets: bool = True  # false: only max_running bounds what runs
    encode_budget_tokens: int = Field(10_240, ge=1)  # visual tokens in encode at a time (UnifiedServe's value)
    prefill_budget_tokens: int = Field(2048, ge=1)  # prompt tokens with a replica and not yet prefilled
    tbt_slo_ms: float = Field(200, gt=0)  # time between tokens; over it, the encode budget is tightened
    aging_ms: float = Field(5000, ge=0)  # after so long nobody is overtaken by another class any more
    classes: RequestClasses = RequestClasses()


class Cache(_Section):
    """What is kept to be used again."""

    # the embedding pool: visual tokens of running requests and of images seen before, oldest out first; 0: none
    encoder_mb: int = Field(64, ge=0)


class Limits(_Section):
    """What a request may ask for; beyond it a request is refused with the limit's name."""

    images_per_request: int = Field(8, ge=0, le=1024)
    image_bytes_mb: float = Field(20.0, gt=0)  # encoded size of one image
    image_pixels_mp: float = Field(64.0, gt=0)  # width x height, in millions, read from the header before decoding
    context_tokens: int = Field(2048, ge=16)  # prompt, visual tokens and answer together
    default_max_tokens: int = Field(128, ge=1)  # when the request names none


class Admission(_Section):
    """When a request is refused for what the server holds already."""

    waiting_visual_mb: float = Field(64, gt=0)  # visual tokens between the begin of encode and the end of prefill
    memory_watermark: float = Field(0.9, gt=0, le=1)  # used share of a memory above which nothing new is taken
    breaker_pressure: float = Field(0.7, gt=0, le=1)  # fill of the fullest queue or memory: the very large are refused
    breaker_tokens: int = Field(4096, ge=1)  # prompt and answer together; more is very large


class Serving(_Section):
    """How `tvlm serve` treats its server."""

    grace_s: float = Field(120, ge=0)  # for running requests when it is told to stop; an answer can take minutes
    # a stub that answers no health inference and gets nothing else done for so long, beyond its stage's timeout_ms, is
    # killed and its model loaded again; the router, which has no such limit, within so long
    hang_timeout_s: float = Field(15, gt=0)


class Deployment(_Section):
    """A whole deployment file. `checkpoint` is resolved against the file's own folder."""

    checkpoint: Path
    profile: Literal["cpu"] = "cpu"
    pools: Pools = Pools()
    scheduler: SchedulerSection = SchedulerSection()
    cache: Cache = Cache()
    limits: Limits = Limits()
    admission: Admission = Admission()
    serving: Serving = Serving()


def load_deployment(path: Path) -> Deployment:
    """Read and validate a deployment file.

    Raises:
        DeploymentError: the file is missing, is not YAML, or a key or value is not acceptable.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise DeploymentError(f"deployment file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeploymentError(f"deployment file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise DeploymentError(f"deployment file {path} must be a mapping with at least the key 'checkpoint'")
    deployment = parse_deployment(raw, str(path))
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
