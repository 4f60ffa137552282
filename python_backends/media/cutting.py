"""Pixels of tiles, from a picture that can be had at any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from python_backends.media.bicubic import bicubic
from python_backends.media.layout import Layout
from python_backends.media.tiling import AnyResolution, Size, check_aspect

_REDUCED = 4  # times the tile's side; scaled down to it first, a tile differs by less than 1/255
Scaled = Callable[[Size], Image.Image]  # the upright picture, in RGB, squashed to this size


def scales(size: Size, layout: Layout, alone: bool) -> list[Size]:
    """The sizes that `cut` will ask for (ServingError)."""
    if layout.native is not None:
        return [layout.native.resized(size)]
    square = Size(layout.tile, layout.tile)
    tiling = layout.tiling(alone)
    if tiling is not None:
        return [tiling.content(size), square]
    if layout.fit == "crop":
        return [_covering(size, layout.tile)]
    return [_within(size, layout.tile)] if layout.fit == "pad" else [square]


def cut(scaled: Scaled, size: Size, layout: Layout, alone: bool) -> NDArray[np.uint8]:
    """Tiles of an upright picture of this size, uint8 [tiles, side, side, 3] (ServingError: too thin for it).

    At native resolution one, [1, height, width, 3].
    """
    if layout.native is not None:
        return np.asarray(scaled(layout.native.resized(size)), np.uint8)[np.newaxis]
    tiling = layout.tiling(alone)
    if tiling is not None:
        return _any_resolution(scaled, size, tiling)
    side = layout.tile
    if layout.fit == "squash":
        tile = scaled(Size(side, side))
    elif layout.fit == "crop":
        covering = _covering(size, side)
        left, top = (covering.width - side) // 2, (covering.height - side) // 2
        tile = scaled(covering).crop((left, top, left + side, top + side))
    else:
        inner = _within(size, side)
        span = max(inner.width, inner.height)
        square = Image.new("RGB", (span, span), layout.pad_colour)
        square.paste(scaled(inner), ((span - inner.width) // 2, (span - inner.height) // 2))
        tile = bicubic(square, (side, side))
    return np.asarray(tile, np.uint8)[np.newaxis]


def _covering(size: Size, side: int) -> Size:
    """The picture with its shorter side as long as a tile's, as CLIP's processor scales it (ServingError)."""
    check_aspect(size)
    shorter = min(size.width, size.height)
    return Size(side * size.width // shorter, side * size.height // shorter)


def _within(size: Size, side: int) -> Size:
    """What is padded: the picture as it is, as the reference has it, unless it is far larger than the tile."""
    longer = max(size.width, size.height)
    span = min(longer, side * _REDUCED)
    return Size(max(1, round(size.width * span / longer)), max(1, round(size.height * span / longer)))


def _any_resolution(scaled: Scaled, size: Size, tiling: AnyResolution) -> NDArray[np.uint8]:
    """The overview, then the canvas row by row."""
    content, canvas, grid, side = tiling.content(size), tiling.canvas(size), tiling.grid(size), tiling.tile
    pixels = np.zeros((canvas.height, canvas.width, 3), np.uint8)
    top, left = (canvas.height - content.height) // 2, (canvas.width - content.width) // 2
    pixels[top : top + content.height, left : left + content.width] = scaled(content)
    rows = pixels.reshape(grid.height, side, grid.width, side, 3)
    overview = np.asarray(scaled(Size(side, side)))
    return np.concatenate((overview[np.newaxis], rows.swapaxes(1, 2).reshape(-1, side, side, 3)))
