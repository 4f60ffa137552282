"""TensorRT-LLM's names and values: what is used of its package, and this product's parameters in its terms."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from python_backends.engines.trtllm_handover import Handover
from python_backends.sampling import SamplingParams
from python_backends.workers.targets import MissingRuntime, require

REMEDY = "run in the image of containers/Dockerfile, which has version 1.2"


class WayIn(Enum):
    """How a family's visual tokens enter TensorRT-LLM."""

    EMBEDDINGS = "multi_modal_embeddings"
    HANDLES = "multimodal_embedding_handles"


# by `model_type` of the checkpoint's config.json
WAYS_IN: Mapping[str, WayIn] = {
    "llava": WayIn.EMBEDDINGS,
    "llava_next": WayIn.EMBEDDINGS,
    "llava_onevision": WayIn.EMBEDDINGS,
    "qwen2_5_vl": WayIn.HANDLES,
}


@dataclass(frozen=True)
class ModelFacts:
    """What of a checkpoint's own config.json decides how visual tokens go in."""

    way_in: WayIn
    image_token_id: int
    dtype: str  # as PyTorch names it
    hidden_size: int


def load_api(shares_gpu: bool = False) -> SimpleNamespace:
    """What is used, by name (MissingRuntime).

    `shares_gpu`: tensors on the GPU are to reach an engine in this process: SharedTensorContainer is our `Handover`.
    """
    package = require("tensorrt_llm", "TensorRT-LLM", REMEDY)
    shared_tensor = require("tensorrt_llm._torch.shared_tensor", "TensorRT-LLM's shared_tensor", REMEDY)
    parameters = require("tensorrt_llm.disaggregated_params", "TensorRT-LLM's disaggregated_params", REMEDY)
    return SimpleNamespace(
        LLM=package.LLM,
        SamplingParams=package.SamplingParams,
        DisaggregatedParams=parameters.DisaggregatedParams,
        SharedTensorContainer=Handover.put_before(shared_tensor) if shares_gpu else shared_tensor.SharedTensorContainer,
    )


def read_model_facts(artifacts: Path) -> ModelFacts:
    """From `artifacts/llm/config.json`.

    Raises:
        MissingRuntime: it is not there, or TensorRT-LLM has no way in for the visual tokens of this family.
    """
    config = json.loads(text_of(artifacts / "llm" / "config.json"))
    family = config.get("model_type")
    if family not in WAYS_IN:
        known = ", ".join(WAYS_IN)
        raise MissingRuntime(
            f"TensorRT-LLM takes no visual tokens from outside for model_type {family!r}; it does for {known}"
        )
    text = {**config, **config.get("text_config", {})}
    return ModelFacts(
        WAYS_IN[family],
        config.get("image_token_index", config.get("image_token_id")),
        text.get("dtype") or text.get("torch_dtype") or "bfloat16",
        text["hidden_size"],
    )


def sampling_arguments(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """For TensorRT-LLM's SamplingParams: what is left out has its default."""
    values: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "end_id": eos_token_ids[0],
        "pad_id": eos_token_ids[0],
        "ignore_eos": sampling.ignore_eos,
        "detokenize": False,  # the router does it
        "add_special_tokens": False,  # they are in the prompt
        "include_stop_str_in_output": True,  # the token that ended it counts as output, whichever it was
    }
    if eos_token_ids[1:] and not sampling.ignore_eos:
        values["stop_token_ids"] = list(eos_token_ids[1:])
    if sampling.min_tokens:
        values["min_tokens"] = sampling.min_tokens
    for name, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(sampling, name) != neutral:
            values[name] = getattr(sampling, name)
    if sampling.temperature == 0:
        return values | {"top_k": 1}  # greedy
    values |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.top_k > 0:
        values["top_k"] = sampling.top_k
    # TensorRT-LLM's own default is the same seed for every request
    return values | {"seed": sampling.seed if sampling.seed is not None else secrets.randbits(32)}


def text_of(path: Path) -> str:
    """An artifact's text (MissingRuntime)."""
    try:
        return path.read_text()
    except FileNotFoundError:
        raise MissingRuntime(f"{path} is not there: build again with `tvlm build`") from None
