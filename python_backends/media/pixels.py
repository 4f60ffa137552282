"""From whatever Pillow decodes to RGB of a given size: modes, depths, transparency.

The order is cheap and exact at once: shrink in the picture's own colours, then convert the few pixels that are left.
What must be converted before it can be averaged is converted in strips, so that a large picture is in memory once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from python_backends.media.colour import LAB_PROFILE, to_srgb

# Large pictures are first averaged down to this many times the target: under 1/255 from the full filter, twice as fast.
_REDUCING_GAP = 4.0
_STRIP_PIXELS = 2_000_000


def to_rgb(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """RGB of this width and height, squashed with the bicubic filter as the reference processors do.

    Transparent pixels show white. 16-bit and deeper grey is scaled, not clipped.
    """
    profile = image.info.get("icc_profile")
    if image.mode.startswith(("I", "F")):
        low, high = _grey_range(image)
        return _shrink(image, size, lambda strip: _grey(strip, low, high)).convert("RGB")
    if image.has_transparency_data:
        return to_srgb(_over_white(_shrink(image, size, _premultiplied)), profile).convert("RGB")
    tile = to_srgb(_shrink(image, size, _averageable), profile)
    if tile.mode == "LAB":  # Pillow itself can't convert it
        tile = to_srgb(tile, LAB_PROFILE)
    return tile.convert("RGB")


def _shrink(image: Image.Image, size: tuple[int, int], convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """As `convert(image).resize(..., reducing_gap=...)`, without the whole of `convert(image)` at once."""
    width, height = image.size
    factor_x = int(width / size[0] / _REDUCING_GAP) or 1
    factor_y = int(height / size[1] / _REDUCING_GAP) or 1
    if factor_x == factor_y == 1:
        return convert(image).resize(size, Image.Resampling.BICUBIC)
    rows = factor_y * max(1, _STRIP_PIXELS // (width * factor_y))
    reduced: Image.Image | None = None
    for top in range(0, height, rows):
        strip = convert(image.crop((0, top, width, min(top + rows, height)))).reduce((factor_x, factor_y))
        if reduced is None:
            reduced = Image.new(strip.mode, (strip.width, -(-height // factor_y)))
        reduced.paste(strip, (0, top // factor_y))
    assert reduced is not None
    # the last column and row may stand for fewer pixels than the others
    whole = (0, 0, width / factor_x, height / factor_y)
    return reduced.resize(size, Image.Resampling.BICUBIC, whole)


def _averageable(image: Image.Image) -> Image.Image:
    """Palette indices and single bits have no mean."""
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("P", "RGBX", "HSV"):
        return image.convert("RGB")
    return image


def _premultiplied(image: Image.Image) -> Image.Image:
    """So that the colours of invisible pixels do not bleed into their neighbours."""
    if image.mode == "RGBa":
        return image
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode != "RGBA":
        image = image.convert("RGBA")
    return image.convert("RGBa")


def _over_white(image: Image.Image) -> Image.Image:
    colours = np.asarray(image).astype(np.int16)
    white = 255 - colours[..., 3:]
    return Image.fromarray(np.clip(colours[..., :3] + white, 0, 255).astype(np.uint8), "RGB")


def _grey_range(image: Image.Image) -> tuple[float, float]:
    """The values that mean black and white in 16-bit, 32-bit and float grey.

    16-bit covers 0 to 65535 and float 0 to 1, as their writers mean it; what goes beyond has no agreed range and is
    stretched between its own extremes.
    """
    usual = 1.0 if image.mode == "F" else 65535.0
    if image.mode.startswith("I;16"):
        return 0.0, usual
    low, high = (float(value) for value in image.getextrema())  # type: ignore[arg-type]
    if (low >= 0 and high <= usual) or not np.isfinite(high - low):
        return 0.0, usual
    return low, high


def _grey(image: Image.Image, low: float, high: float) -> Image.Image:
    values: NDArray[np.generic] = np.asarray(image)
    scale = np.float32(255.0 / max(high - low, 1e-30))
    scaled = (np.nan_to_num(values.astype(np.float32)) - np.float32(low)) * scale + np.float32(0.5)
    grey = scaled.clip(0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey, "L")
