"""Makes tiling_goldens.json and tiling_pixels.npz: what the reference processors make of pictures by their size.

Run by hand, with transformers and torch (the extra `train`): `python -m tests.golden.make_tiling_goldens`. For each
size and checkpoint family: tiles (or the patch grid, height and width) and visual tokens. The pixels are every
`STEP`-th of each tile, uint8, of one picture.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.media.scenes import photo

VALUES = Path(__file__).parent / "tiling_goldens.json"
PIXELS = Path(__file__).parent / "tiling_pixels.npz"
STEP = 24
PICTURES = ((500, 375), (700, 200), (300, 640))
QWEN_PICTURE = (250, 180)

_SIDES = (1, 2, 27, 28, 29, 55, 56, 57, 224, 336, 337, 672, 999, 1008, 1344, 2304, 4000)
SIZES = sorted(
    {*itertools.product(_SIDES, _SIDES), (199, 1), (200, 1), (201, 1), (3, 597), (1280, 960), (4032, 3024), (3, 3)}
)


def denormalised(pixels: np.ndarray, mean: list[float], std: list[float]) -> np.ndarray:
    """[..., 3, H, W] as the towers take it to uint8 [..., H, W, 3]."""
    channels_last = np.moveaxis(np.asarray(pixels), -3, -1)
    return np.round((channels_last * np.array(std) + np.array(mean)) * 255).astype(np.uint8)


def _llava(processor: object, image_processor: object, sizes: list[tuple[int, int]]) -> dict[str, list[int] | None]:
    from transformers.image_processing_utils import select_best_resolution  # noqa: PLC0415

    found: dict[str, list[int] | None] = {}
    for width, height in sizes:
        try:
            (tokens,) = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]  # type: ignore[attr-defined]
            rows, columns = select_best_resolution((height, width), image_processor.image_grid_pinpoints)  # type: ignore[attr-defined]
        except (TypeError, ZeroDivisionError):  # so thin that no canvas keeps a pixel: the reference fails
            found[f"{width}x{height}"] = None
            continue
        tile = min(min(pinpoint) for pinpoint in image_processor.image_grid_pinpoints)  # type: ignore[attr-defined]
        found[f"{width}x{height}"] = [1 + rows // tile * (columns // tile), tokens]
    return found


def main() -> None:
    from transformers import (  # noqa: PLC0415
        LlavaNextImageProcessorPil,
        LlavaNextProcessor,
        LlavaOnevisionImageProcessorPil,
        LlavaOnevisionProcessor,
        Qwen2VLImageProcessorPil,
    )

    # as llava-v1.6 checkpoints set it
    following = LlavaNextImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    onevision = LlavaOnevisionImageProcessorPil()
    qwen = Qwen2VLImageProcessorPil()
    next_processor = LlavaNextProcessor.__new__(LlavaNextProcessor)
    next_processor.__dict__.update(
        image_processor=following, patch_size=14, num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    one_processor = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
    one_processor.__dict__.update(
        image_processor=onevision, num_image_tokens=729, vision_aspect_ratio="anyres_max_9",
        vision_feature_select_strategy="full",
    )  # fmt: skip
    for processor in (next_processor, one_processor):
        processor._merge_kwargs = lambda **_: {"images_kwargs": {}}
    grids: dict[str, list[int] | None] = {}
    for width, height in SIZES:
        if max(width, height) > 200 * min(width, height):
            grids[f"{width}x{height}"] = None
            continue
        rows, columns = _qwen_grid(qwen, width, height)
        grids[f"{width}x{height}"] = [rows, columns, rows * columns // 4]
    values = {
        "llava_next": _llava(next_processor, following, SIZES),
        "llava_onevision": _llava(one_processor, onevision, SIZES),
        "qwen2_vl": grids,
    }
    rows_ = (f'  "{family}": {json.dumps(table)}' for family, table in values.items())
    VALUES.write_text("{\n" + ",\n".join(rows_) + "\n}\n")
    np.savez_compressed(PIXELS, **_pixels(following, onevision))


def _qwen_grid(qwen: object, width: int, height: int) -> tuple[int, int]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize  # noqa: PLC0415

    resized = smart_resize(height, width)
    if width * height < 1_000_000:  # the whole processor agrees
        grid = qwen(images=Image.new("RGB", (width, height)), return_tensors="np")["image_grid_thw"][0]  # type: ignore[operator]
        assert (resized[0] // 14, resized[1] // 14) == tuple(grid[1:]), (width, height)
    return resized[0] // 14, resized[1] // 14


def _pixels(following: object, onevision: object) -> dict[str, np.ndarray]:
    pixels = {}
    for family, processor in (("llava_next", following), ("llava_onevision", onevision)):
        for width, height in PICTURES:
            tensor = processor(images=photo(width, height), return_tensors="np")["pixel_values"][0]  # type: ignore[operator]
            tiles = denormalised(tensor, processor.image_mean, processor.image_std)  # type: ignore[attr-defined]
            pixels[f"{family}_{width}x{height}"] = tiles[:, ::STEP, ::STEP]
    return pixels


if __name__ == "__main__":
    main()
