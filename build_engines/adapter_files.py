"""The names that a checkpoint's LoRA adapter goes by: PEFT's, so that its tools read the files too."""

from __future__ import annotations

import re

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")  # the LLM's layers that an adapter may change


_WEIGHT = re.compile(rf"base_model\.model\.model\.layers\.(\d+)\.self_attn\.({'|'.join(MODULES)})\.(lora_[AB])\.weight")


def weight_name(layer: int, module: str, part: str) -> str:
    """The name of matrix `lora_A` [rank, in] or `lora_B` [out, rank] of one LLM layer's module."""
    return f"base_model.model.model.layers.{layer}.self_attn.{module}.{part}.weight"


def parse_weight_name(name: str) -> tuple[int, str, str] | None:
    """The other way round; None: it is none of these."""
    found = _WEIGHT.fullmatch(name)
    return (int(found[1]), found[2], found[3]) if found else None
