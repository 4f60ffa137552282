"""How many tiles and visual tokens a picture of a checkpoint becomes, known from its size alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from python_backends.checkpoint import Checkpoint, NativeResolution
from python_backends.media.tiling import AnyResolution, PatchGrid, Size


def patch_grid(native: NativeResolution) -> PatchGrid:
    """The rule of a checkpoint of native resolution."""
    return PatchGrid(native.patch, native.merge, native.min_pixels, native.max_pixels)


@dataclass(frozen=True)
class Layout:
    """One tile a picture, or what the checkpoint has instead: any-resolution tiles, or its native resolution.

    At native resolution a picture is one "tile" of a size of its own. What is asked with `alone` depends on whether the
    picture is the only one of its request: LLaVA-OneVision cuts only such into tiles.
    """

    tile: int  # pixels of a side; of native resolution nothing
    tile_tokens: int = 1
    fit: Literal["squash", "crop", "pad"] = "squash"
    pad_colour: tuple[int, int, int] = (0, 0, 0)
    any_resolution: AnyResolution | None = None
    alone_only: bool = False
    native: PatchGrid | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Layout:
        """The checkpoint's."""
        tile, tokens, tiling = checkpoint.image_size, checkpoint.tokens_per_tile, checkpoint.tiling
        one = cls(tile, tokens, checkpoint.fit, checkpoint.pad_colour)
        if checkpoint.native is not None:
            return replace(one, native=patch_grid(checkpoint.native))
        if tiling is None:
            return one
        canvases = [Size(*canvas) for canvas in tiling.canvases]
        any_resolution = AnyResolution(tile, canvases, math.isqrt(tokens), tiling.max_tiles)
        return replace(one, any_resolution=any_resolution, alone_only=tiling.alone_only)

    @property
    def ends_rows(self) -> bool:
        """Whether a token that the checkpoint has learnt (`image_newline`) ends each row of features."""
        return self.any_resolution is not None

    @property
    def most_tiles(self) -> int:
        """Of any picture."""
        if self.any_resolution is None:
            return 1
        return max(self.any_resolution.tiles(canvas) for canvas in self.any_resolution.canvases)

    @property
    def most_pixels(self) -> int:
        """Of all tiles of any picture together."""
        if self.native is not None:
            return self.native.most_tokens * self.native.unit**2
        return self.most_tiles * self.tile**2

    @property
    def most_tokens(self) -> int:
        """Of a picture that fills its canvas, the largest."""
        if self.native is not None:
            return self.native.most_tokens
        if self.any_resolution is None:
            return self.tile_tokens
        return max(self.any_resolution.tokens(canvas) for canvas in self.any_resolution.canvases)

    def tiling(self, alone: bool) -> AnyResolution | None:
        """How the picture is cut; None: it is one tile."""
        return None if self.alone_only and not alone else self.any_resolution

    def tiles(self, size: Size) -> int:
        """Tiles of a picture of this size that is alone."""
        return 1 if self.any_resolution is None else self.any_resolution.tiles(size)

    def token_grid(self, size: Size) -> Size | None:
        """How the visual tokens are laid out, where the LLM's positions follow it (ServingError)."""
        return None if self.native is None else self.native.token_grid(size)

    def tokens(self, size: Size, alone: bool) -> int:
        """Visual tokens of an upright picture of this size (ServingError: it is too thin)."""
        if self.native is not None:
            return self.native.tokens(size)
        tiling = self.tiling(alone)
        return self.tile_tokens + self.ends_rows if tiling is None else tiling.tokens(size)
