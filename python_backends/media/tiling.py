"""How checkpoints cut a picture into tiles or patches: functions of its upright size.

So the number of visual tokens is known before anything is decoded. Arithmetic only: `cutting` makes the pixels,
`packing` puts the features of tiles together. Golden values: tests/golden/make_tiling_goldens.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from python_backends.media.limits import refuse

_MAX_ASPECT = 200  # of Qwen2-VL


@dataclass(frozen=True)
class Size:
    """Pixels, or cells of a grid."""

    width: int
    height: int

    @property
    def area(self) -> int:
        """Width times height."""
        return self.width * self.height


def check_aspect(size: Size) -> None:
    """Refuse what is so thin that keeping its shape would make it enormous (ServingError, INVALID_ARG)."""
    aspect = max(size.width, size.height) / min(size.width, size.height)
    if aspect > _MAX_ASPECT:
        raise refuse(
            f"{size.width} x {size.height} pixels are of aspect ratio {aspect:.0f}, over the limit of {_MAX_ASPECT}"
        )


@dataclass(frozen=True)
class AnyResolution:
    """LLaVA-NeXT's any-resolution tiles ("LLaVA-NeXT: Improved reasoning, OCR, and world knowledge", 2024, section 1).

    A picture becomes an overview, squashed to one tile, and the tiles of the canvas that fits it best. With `max_tiles`
    it is LLaVA-OneVision's "anyres_max_N" (arXiv 2408.03326, section 3.2): the features of larger canvases are shrunk
    to those of N tiles.
    """

    tile: int  # pixels of a side
    canvases: Sequence[Size]  # `image_grid_pinpoints` of the checkpoint, in its order
    tile_features: int  # of a side: 24 for a CLIP tower of 336 pixels and patches of 14
    max_tiles: int | None = None

    def canvas(self, size: Size) -> Size:
        """The canvas that keeps most of the picture's pixels and, among those, wastes least; the first of equals."""
        best = self.canvases[0]
        best_kept, best_wasted = -1, 0
        for canvas in self.canvases:
            scale = min(canvas.width / size.width, canvas.height / size.height)
            kept = min(int(size.width * scale) * int(size.height * scale), size.area)
            wasted = canvas.area - kept
            if kept > best_kept or (kept == best_kept and wasted < best_wasted):
                best, best_kept, best_wasted = canvas, kept, wasted
        return best

    def content(self, size: Size) -> Size:
        """The picture on its canvas, in the middle; the rest is black."""
        canvas = self.canvas(size)
        by_width, by_height = canvas.width / size.width, canvas.height / size.height
        if by_width < by_height:
            return Size(canvas.width, min(math.ceil(size.height * by_width), canvas.height))
        return Size(min(math.ceil(size.width * by_height), canvas.width), canvas.height)

    def grid(self, size: Size) -> Size:
        """Tiles of the canvas."""
        canvas = self.canvas(size)
        return Size(canvas.width // self.tile, canvas.height // self.tile)

    def tiles(self, size: Size) -> int:
        """All tiles, with the overview."""
        return 1 + self.grid(size).area

    def kept(self, size: Size) -> Size:
        """Features of the canvas without its black margins, whose number is even on the two sides."""
        grid = self.grid(size)
        canvas = Size(grid.width * self.tile_features, grid.height * self.tile_features)
        return _without_margins(size, canvas)

    def shrunk(self, size: Size) -> Size:
        """What `kept` features are scaled to: themselves, unless they are over `max_tiles` by a tenth of a side."""
        kept = self.kept(size)
        if self.max_tiles is not None:
            shrink = math.sqrt(kept.area / (self.max_tiles * self.tile_features**2))
            if shrink > 1.1:
                return Size(int(kept.width // shrink), int(kept.height // shrink))
        return kept

    def tokens(self, size: Size) -> int:
        """Visual tokens: the overview's, those of the canvas without its black margins, and one at each row's end."""
        features = self.shrunk(size)
        return self.tile_features**2 + features.area + features.height


@dataclass(frozen=True)
class PatchGrid:
    """Qwen2-VL's native resolution (arXiv 2409.12191, section 2.1): sides in whole patches, area within bounds."""

    patch: int = 14  # pixels of a side
    merge: int = 2  # patches of a side that become one token
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    @property
    def unit(self) -> int:
        """Pixels of a side of what becomes one token."""
        return self.patch * self.merge

    def resized(self, size: Size) -> Size:
        """The size that the picture is scaled to.

        Raises:
            ServingError: INVALID_ARG, one side is over 200 times the other.
        """
        check_aspect(size)
        unit = self.unit
        near = Size(round(size.width / unit) * unit, round(size.height / unit) * unit)
        if near.area > self.max_pixels:
            shrink = math.sqrt(size.area / self.max_pixels)
            return Size(*(max(unit, math.floor(side / shrink / unit) * unit) for side in (size.width, size.height)))
        if near.area < self.min_pixels:
            grow = math.sqrt(self.min_pixels / size.area)
            return Size(*(math.ceil(side * grow / unit) * unit for side in (size.width, size.height)))
        return near

    def grid(self, size: Size) -> Size:
        """Patches that the vision tower sees (ServingError)."""
        resized = self.resized(size)
        return Size(resized.width // self.patch, resized.height // self.patch)

    def tokens(self, size: Size) -> int:
        """Visual tokens (ServingError)."""
        return self.token_grid(size).area

    def token_grid(self, size: Size) -> Size:
        """How the visual tokens are laid out (ServingError)."""
        grid = self.grid(size)
        return Size(grid.width // self.merge, grid.height // self.merge)

    @property
    def most_tokens(self) -> int:
        """Of any picture: what `max_pixels` has, unless bounds are so narrow that whole tokens go beyond them."""
        least, most = (pixels / self.unit**2 for pixels in (self.min_pixels, self.max_pixels))
        thin, grown = math.sqrt(_MAX_ASPECT * most), math.sqrt(_MAX_ASPECT * least)  # sides of the thinnest picture
        return math.ceil(max(most, thin, least + grown + least / max(grown, 1) + 1))


def _without_margins(size: Size, canvas: Size) -> Size:
    """The cells of a canvas without the margins beside a picture of this shape, which are equal on both sides."""
    if size.width / size.height > canvas.width / canvas.height:
        content = int(round(size.height * (canvas.width / size.width), 7))
        return Size(canvas.width, canvas.height - (canvas.height - content) // 2 * 2)
    content = int(round(size.width * (canvas.height / size.height), 7))
    return Size(canvas.width - (canvas.width - content) // 2 * 2, canvas.height)
