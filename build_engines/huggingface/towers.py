"""The vision tower of a Hugging Face folder, whichever kind its family has."""

from __future__ import annotations

from pathlib import Path

from build_engines.facts import CONFIG, read_json
from build_engines.huggingface.qwen_vision import build_qwen_vision
from build_engines.huggingface.vision import build_vision

PACKED_PATCHES = ("qwen2_5_vl",)  # the other families' towers take square tiles


def build_tower(checkpoint: Path, output: Path, precision: str = "f32") -> None:
    """Write `output`/model.onnx; see `vision.build_vision` (BuildError)."""
    packed = read_json(checkpoint / CONFIG).get("model_type") in PACKED_PATCHES
    (build_qwen_vision if packed else build_vision)(checkpoint, output, precision)
