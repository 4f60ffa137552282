"""What a checkpoint's image processor does to pixels, from its JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from build_engines.errors import BuildError
from build_engines.facts import read_json

_FILES = ("preprocessor_config.json", "processor_config.json")  # the second is transformers' since version 5
_BICUBIC = 3
_DEFAULT_AREA = (56 * 56, 28 * 28 * 1280)  # of Qwen2-VL's image processor


@dataclass(frozen=True)
class PictureRule:
    """Scaling to a tile, and `pixel * scale + shift` for each of the three colours of 0 to 255."""

    fit: Literal["squash", "crop", "pad"]  # of a picture that is one tile
    pad_colour: tuple[int, int, int]
    canvases: list[list[int]] | None  # [height, width]; of checkpoints with any-resolution tiles
    area: tuple[int, int]  # smallest and largest, in pixels; of checkpoints of native resolution
    scale: tuple[float, ...]
    shift: tuple[float, ...]


def read_picture_rule(checkpoint: Path) -> PictureRule:
    """The rule of a checkpoint folder (BuildError: there is none, or one that decode can't follow)."""
    path = next((checkpoint / name for name in _FILES if (checkpoint / name).is_file()), None)
    if path is None:
        raise BuildError(f"checkpoint {checkpoint} has none of {', '.join(_FILES)}")
    values = read_json(path)
    values = values.get("image_processor", values)
    if values.get("resample", _BICUBIC) != _BICUBIC:
        raise BuildError(
            f"{path}: resample is {values['resample']}; pictures are scaled with filter {_BICUBIC}, bicubic"
        )
    try:
        mean, std = values["image_mean"], values["image_std"]
    except KeyError as error:
        raise BuildError(f"{path} has no key {error}") from error
    factor = values.get("rescale_factor", 1 / 255)
    return PictureRule(
        fit=_fit(path, values),
        pad_colour=(int(mean[0] * 255), int(mean[1] * 255), int(mean[2] * 255)),
        canvases=values.get("image_grid_pinpoints"),
        area=_area(values),
        scale=tuple(factor / s for s in std),
        shift=tuple(-m / s for m, s in zip(mean, std, strict=True)),
    )


def _area(values: dict[str, Any]) -> tuple[int, int]:
    """In either of the ways that transformers has written it; without any, transformers' default."""
    size = values.get("size") or {}
    least = values.get("min_pixels") or size.get("shortest_edge") or _DEFAULT_AREA[0]
    most = values.get("max_pixels") or size.get("longest_edge") or _DEFAULT_AREA[1]
    return int(least), int(most)


def _fit(path: Path, values: dict[str, Any]) -> Literal["squash", "crop", "pad"]:
    if values.get("do_pad") and "image_grid_pinpoints" not in values:  # there it is about batches
        return "pad"
    size = values.get("size") or {}
    if "shortest_edge" not in size or "longest_edge" in size:  # both: an area, of native resolution
        return "squash"
    crop = values.get("crop_size") or {}
    if not values.get("do_center_crop") or crop.get("height") != size["shortest_edge"]:
        raise BuildError(f"{path}: size.shortest_edge without a crop_size of the same does not give one tile")
    return "crop"
