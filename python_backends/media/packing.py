"""Features of a picture's tiles to its visual tokens (LLaVA-NeXT's `spatial_unpad`; LLaVA-OneVision's shrinking)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.media.layout import Layout
from python_backends.media.tiling import Size

Rows = NDArray[Any]  # float16, or numbers that stand for such

ROW_END_FILE = "row_end.npy"  # beside the vision model


ROW_END = -1  # in what `sources` gives


def load_row_end(folder: Path) -> Rows:
    """The checkpoint's token at the end of a row, float16 [hidden] (FileNotFoundError)."""
    return np.asarray(np.load(folder / ROW_END_FILE), np.float16)


def pack(tiles: Rows, size: Size, layout: Layout, row_end: Rows | None) -> Rows:
    """Visual tokens [tokens, hidden] of a picture of this upright size, from features [tiles, T, hidden].

    `row_end` [hidden] is the checkpoint's token at the end of a row; None where it has none (then features are tokens).
    """
    if row_end is None:
        return tiles.reshape(-1, tiles.shape[-1])
    tiling = layout.tiling(alone=True)
    if len(tiles) == 1 or tiling is None:
        return np.concatenate((tiles[0], row_end[np.newaxis]))
    hidden, side, grid, kept = tiles.shape[-1], tiling.tile_features, tiling.grid(size), tiling.kept(size)
    cells = tiles[1:].reshape(grid.height, grid.width, side, side, hidden)
    canvas = cells.swapaxes(1, 2).reshape(grid.height * side, grid.width * side, hidden)
    top, left = (canvas.shape[0] - kept.height) // 2, (canvas.shape[1] - kept.width) // 2
    inside = canvas[top : top + kept.height, left : left + kept.width]
    shrunk = tiling.shrunk(size)
    if shrunk != kept:
        inside = _scaled(inside, shrunk)
    ends = np.broadcast_to(row_end, (len(inside), 1, hidden))
    return np.concatenate((tiles[0], np.concatenate((inside, ends), axis=1).reshape(-1, hidden)))


def sources(tiles: int, each: int, size: Size, layout: Layout) -> NDArray[np.int32] | None:
    """Of each visual token of a picture the row of its features [tiles x each, hidden], or ROW_END.

    None: they are not rows, but between them, as features are scaled.
    """
    tiling = layout.tiling(alone=True)
    if tiling is not None and tiles > 1 and tiling.shrunk(size) != tiling.kept(size):
        return None
    numbers = np.arange(tiles * each, dtype=np.int32).reshape(tiles, each, 1)
    packed = pack(numbers, size, layout, np.array([ROW_END], np.int32) if layout.ends_rows else None)
    return np.asarray(packed[:, 0], np.int32)


def _scaled(cells: Rows, size: Size) -> Rows:
    """Bilinear, pixel centres at halves, without averaging, as torch.nn.functional.interpolate does it."""
    halfway = _along(cells.astype(np.float32), size.height)
    return _along(halfway.swapaxes(0, 1), size.width).swapaxes(0, 1).astype(np.float16)


def _along(cells: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Scale the first axis."""
    places = np.maximum((np.arange(count) + 0.5) * (len(cells) / count) - 0.5, 0)
    low = places.astype(np.int64)
    high = np.minimum(low + 1, len(cells) - 1)
    share = (places - low).astype(np.float32)[:, np.newaxis, np.newaxis]
    between: NDArray[np.float32] = cells[low] * (1 - share) + cells[high] * share
    return between
