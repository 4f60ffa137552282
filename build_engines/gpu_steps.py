"""What a build for profile gpu makes of a Hugging Face folder; each in a process of its own, beside the GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path


def link_checkpoint(checkpoint: Path, output: Path) -> None:
    """The LLM for TensorRT-LLM is the folder itself: `output` gets links to its files, symbolic ones if need be.

    So 65 GB are not there twice. On another file system what was built needs the folder to stay where it is.
    """
    output.mkdir()
    for source in checkpoint.iterdir():
        if not source.is_file():
            continue
        file = source.resolve()  # a hub's cache holds symbolic links
        try:
            os.link(file, output / source.name)
        except OSError:
            (output / source.name).symlink_to(file)


def build_vision_plan(checkpoint: Path, output: Path, precision: str, profiles: str) -> None:
    """Export the tower in `precision` (f32, f16, bf16) and build its TensorRT plan into `output`.

    `profiles` is JSON: [[smallest, tuned for, largest], ...] batches of tiles.

    Raises:
        BuildError: PyTorch and ONNX disagree, or TensorRT is not there, can't parse or can't build it.
    """
    # both of the extra [export], and heavy
    from build_engines.huggingface.facts import read  # noqa: PLC0415
    from build_engines.huggingface.vision import build_vision  # noqa: PLC0415
    from build_engines.tensorrt_plan import PLAN, TIMING_CACHE, import_tensorrt, serialize, tile_profiles  # noqa: PLC0415

    tensorrt = import_tensorrt()  # before minutes of export
    build_vision(checkpoint, output, precision)
    onnx = output / "model.onnx"
    batches = tile_profiles([tuple(batch) for batch in json.loads(profiles)], read(checkpoint).image_size)
    plan = serialize(tensorrt, onnx, batches, timing_cache=output / TIMING_CACHE)
    (output / PLAN).write_bytes(plan)
    onnx.unlink()
    onnx.with_suffix(".onnx.data").unlink(missing_ok=True)
