"""The kinds of vision towers: what one takes in a call, and how its rows become the visual tokens of pictures.

The only place of the encode stage that knows which kind a checkpoint has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import Checkpoint, NativeResolution
from python_backends.errors import ServingError, invalid
from python_backends.media.layout import Layout, patch_grid
from python_backends.media.packing import load_row_end, pack, sources
from python_backends.media.tiling import Size
from python_backends.workers.targets import ENCODE, ENCODE_PATCHES

Tiles = NDArray[np.uint8]  # of one picture, [tiles, H, W, 3]
Rows = NDArray[np.float16]  # [rows, hidden]

_CALL_TILES = 64  # in one call of the worker, which cuts them into batches
_CALL_PICTURES = 256
_ALIGNED = 64  # bytes that an array may be moved by, to lie well


class Tower(Protocol):
    """A kind of tower."""

    targets: Mapping[str, str]  # the worker's class by device
    config: dict[str, Any]  # what the worker must know of the tower
    slot_bytes: int  # of one call's arrays and its answer's
    row_end: Rows  # the token at the end of a row of tokens, [1, hidden]; where there is none [0, hidden]

    def refusal(self, tiles: Tiles, size: Size) -> ServingError | None:
        """Why these can't be the tiles of a picture of this upright size."""

    def calls(self, pictures: Sequence[Tiles]) -> Iterator[list[NDArray[np.uint8]]]:
        """Arrays of each call of the worker; rows come back in the order of the pictures."""

    def rows(self, tiles: Tiles) -> int:
        """How many of the worker's rows are this picture's."""

    def tokens(self, rows: Rows, size: Size) -> Rows:
        """Visual tokens of a picture of this size."""

    def sources(self, tiles: Tiles, size: Size) -> NDArray[np.int32] | None:
        """Which of its rows each visual token of a picture is (see packing.sources); None: they are not rows."""


def tower_of(checkpoint: Checkpoint, artifacts: Path) -> Tower:
    """The checkpoint's."""
    if checkpoint.native is not None:
        return PatchTower(checkpoint, checkpoint.native)
    return TileTower(checkpoint, artifacts)


class TileTower:
    """Squares of one size; the features of a picture's tiles are put together (media/packing.py)."""

    targets = ENCODE

    def __init__(self, checkpoint: Checkpoint, artifacts: Path) -> None:
        self._side, self._each = checkpoint.image_size, checkpoint.tokens_per_tile
        self._layout = Layout.of(checkpoint)
        self._row_end = load_row_end(artifacts / "vision") if self._layout.ends_rows else None
        self.row_end = np.zeros((0, checkpoint.hidden_size), np.float16)
        if self._row_end is not None:
            self.row_end = self._row_end[np.newaxis]
        tile_bytes = self._side**2 * 3 + self._each * checkpoint.hidden_size * 2
        self.config: dict[str, Any] = {"image_size": self._side}
        self.slot_bytes = _CALL_TILES * tile_bytes + 4096

    def refusal(self, tiles: Tiles, size: Size) -> ServingError | None:
        """See Tower."""
        side = self._side
        if tiles.shape[1:3] != (side, side):
            return invalid("tiles", f"shape {_shape(tiles)} must be [tiles, {side}, {side}, 3]")
        expected = self._layout.tiles(size)
        if self._layout.ends_rows and len(tiles) not in (1, expected):
            return invalid("tiles", f"{len(tiles)} of a picture of {size.width} x {size.height}; it has {expected}")
        return None

    def calls(self, pictures: Sequence[Tiles]) -> Iterator[list[NDArray[np.uint8]]]:
        """One array each, of tiles of all pictures."""
        tiles = np.concatenate(pictures)
        for first in range(0, len(tiles), _CALL_TILES):
            yield [tiles[first : first + _CALL_TILES]]

    def rows(self, tiles: Tiles) -> int:
        """See Tower."""
        return len(tiles) * self._each

    def tokens(self, rows: Rows, size: Size) -> Rows:
        """See Tower."""
        return pack(rows.reshape(-1, self._each, rows.shape[-1]), size, self._layout, self._row_end)

    def sources(self, tiles: Tiles, size: Size) -> NDArray[np.int32] | None:
        """See Tower."""
        return sources(len(tiles), self._each, size, self._layout)


class PatchTower:
    """Pictures of any size, as packed patches (media/patches.py).

    A call is a batch of up to the tokens of the largest picture: its cost grows with their square, as some layers
    attend over all of them.
    """

    targets = ENCODE_PATCHES

    def __init__(self, checkpoint: Checkpoint, native: NativeResolution) -> None:
        self._rule = patch_grid(native)
        self._most = self._rule.most_tokens
        self.row_end = np.zeros((0, checkpoint.hidden_size), np.float16)
        self.config: dict[str, Any] = {"native": native.model_dump(), "image_size": checkpoint.image_size}
        token_bytes = self._rule.unit**2 * 3 + checkpoint.hidden_size * 2
        self.slot_bytes = self._most * token_bytes + 2 * _ALIGNED * _CALL_PICTURES + 4096

    def refusal(self, tiles: Tiles, size: Size) -> ServingError | None:
        """See Tower."""
        try:
            wanted = self._rule.resized(size)
        except ServingError as error:
            return error
        if tiles.shape[:3] != (1, wanted.height, wanted.width):
            return invalid("tiles", f"shape {_shape(tiles)} must be [1, {wanted.height}, {wanted.width}, 3]")
        return None

    def calls(self, pictures: Sequence[Tiles]) -> Iterator[list[NDArray[np.uint8]]]:
        """An array for each picture."""
        batch: list[NDArray[np.uint8]] = []
        tokens = 0
        for picture in pictures:
            own = self.rows(picture)
            if batch and (tokens + own > self._most or len(batch) == _CALL_PICTURES):
                yield batch
                batch, tokens = [], 0
            batch.append(picture)
            tokens += own
        if batch:
            yield batch

    def rows(self, tiles: Tiles) -> int:
        """See Tower."""
        return tiles.shape[1] * tiles.shape[2] // self._rule.unit**2

    def tokens(self, rows: Rows, size: Size) -> Rows:
        """The tower's rows are the tokens."""
        return rows

    def sources(self, tiles: Tiles, size: Size) -> NDArray[np.int32] | None:
        """See Tower."""
        return np.arange(self.rows(tiles), dtype=np.int32)


def _shape(tiles: Tiles) -> str:
    return f"[{', '.join(map(str, tiles.shape))}]"
