"""`python -m build_engines.huggingface`: single steps of a build, where export and GPU are on different machines."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from build_engines.errors import BuildError
from build_engines.facts import CONFIG, read_json
from build_engines.tensorrt_plan import as_json, build_plan, patch_profiles, tile_profiles

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
out = Console()

CheckpointFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Hugging Face folder.")]
Output = Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")]
Batch = Annotated[
    list[str], typer.Option("--batches", help="Smallest, tuned for and largest number of tiles or patches.")
]


@app.command()
def vision(
    checkpoint: CheckpointFolder,
    output: Output,
    precision: Annotated[str, typer.Option(help="f32, f16 or bf16.")] = "f32",
) -> None:
    """Vision tower and connector as ONNX, held against PyTorch (LLaVA-1.5, -NeXT, -OneVision, Qwen2.5-VL).

    \b
    Example:
      python -m build_engines.huggingface vision checkpoints/llava-v1.6 build/vision --precision f16
    """
    from build_engines.huggingface.towers import build_tower  # noqa: PLC0415  (imports torch)

    if precision not in ("f32", "f16", "bf16"):
        raise typer.BadParameter(f"--precision {precision} is none of f32, f16, bf16")
    with out.status(f"Exporting {checkpoint.name}"):
        build_tower(checkpoint, output, precision)
    shutil.copyfile(checkpoint / CONFIG, output / CONFIG)  # says to `plan` how large a tile or a patch is
    out.print(f"{output / 'model.onnx'}: {sum(f.stat().st_size for f in output.iterdir()) / 1e6:.0f} MB")


@app.command()
def plan(source: Annotated[Path, typer.Argument(exists=True)], output: Output, batches: Batch) -> None:
    """A TensorRT plan for this machine's GPU, from what `vision` wrote.

    \b
    Example: two profiles, of tiles; and one of patches (Qwen2.5-VL), four to a token
      python -m build_engines.huggingface plan build/vision build/plan --batches 1,4,4 --batches 5,32,32
      python -m build_engines.huggingface plan build/vision build/plan --batches 4,4096,8192
    """
    tower, sizes = read_json(source / CONFIG)["vision_config"], [_batch(text) for text in batches]
    if "window_size" in tower:
        patch = tower["patch_size"]
        profiles = patch_profiles(sizes, patch, (tower["window_size"] // patch) ** 2)
    else:
        profiles = tile_profiles(sizes, tower["image_size"])
    with out.status("Building"):
        build_plan(source, output, as_json(profiles))
    out.print(f"{output}: {sum(f.stat().st_size for f in output.iterdir()) / 1e6:.0f} MB")


def _batch(text: str) -> tuple[int, int, int]:
    try:
        low, tuned, high = map(int, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--batches {text} is not three numbers such as 1,8,32") from None
    return low, tuned, high


if __name__ == "__main__":
    try:
        app(prog_name="python -m build_engines.huggingface")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
