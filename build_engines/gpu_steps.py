"""What a build for profile gpu makes of a Hugging Face folder; each in a process of its own, beside the GPU."""

from __future__ import annotations

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


def build_vision_plan(checkpoint: Path, output: Path, precision: str, profiles: str, timing_cache: str) -> None:
    """Export the tower in `precision` (f32, f16, bf16) and build its TensorRT plan into `output`.

    `profiles` are its optimisation profiles, as `tensorrt_plan.as_json` has them; `timing_cache` is the file of what
    TensorRT has timed in earlier builds, whichever they were of.

    Raises:
        BuildError: PyTorch and ONNX disagree, or TensorRT is not there, can't parse or can't build it.
    """
    # both of the extra [export], and heavy
    from build_engines.huggingface.towers import build_tower  # noqa: PLC0415
    from build_engines.tensorrt_plan import PLAN, from_json, import_tensorrt, serialize  # noqa: PLC0415

    tensorrt = import_tensorrt()  # before minutes of export
    build_tower(checkpoint, output, precision)
    onnx = output / "model.onnx"
    plan = serialize(tensorrt, onnx, from_json(profiles), timing_cache=Path(timing_cache))
    (output / PLAN).write_bytes(plan)
    onnx.unlink()
    onnx.with_suffix(".onnx.data").unlink(missing_ok=True)
