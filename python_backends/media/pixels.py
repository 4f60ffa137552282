"""From whatever Pillow decodes to RGB of a given size: modes, depths, transparency.

The order is cheap and exact at once: shrink in the picture's own colours, then convert the few pixels that are left.
What must be converted before it can be averaged is converted in strips, so that a large picture is in memory once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from python_backends.media.bicubic import bicubic
from python_backends.media.colour import LAB_PROFILE, to_srgb
from python_backends.media.grey import Levels

# Large pictures are first averaged down to this many times the target: under 1/255 from the full filter, twice as fast.
_REDUCING_GAP = 4.0
_STRIP_PIXELS = 2_000_000


def to_rgb(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """RGB of this width and height, squashed with the bicubic filter as the reference processors do.

    Transparent pixels show white. 16-bit and deeper grey is scaled, not clipped.
    """
    profile = image.info.get("icc_profile")
    if image.mode.startswith(("I", "F")):
        return _shrink(image, size, Levels.of(image).to_8_bits).convert("RGB")
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
        return bicubic(convert(image), size)
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
    return bicubic(reduced, size, whole)


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
