"""Pictures as packed patches, for towers of native resolution with window attention (Qwen2.5-VL, arXiv 2502.13923).

Patches of any number of pictures lie one after another; index arrays tell where each one stands, and which attend to
which. Golden test: transformers' own indices, in tests/export.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.media.tiling import PatchGrid, Size

WINDOW_PIXELS = 112  # of a side


@dataclass(frozen=True)
class Packed:
    """What the tower takes beside the pixels, for P patches in W windows of up to S patches."""

    positions: NDArray[np.int32]  # [P, 2]: row and column in the picture
    pictures: NDArray[np.int32]  # [P]: number of the picture; blocks with full attention stay within it
    windows: NDArray[np.int32]  # [W, S]: patches of each window, -1 after its last
    slots: NDArray[np.int32]  # [P]: place of each patch in `windows`, counted over its rows


def cut_patches(pixels: NDArray[np.uint8], rule: PatchGrid) -> NDArray[np.uint8]:
    """Patches uint8 [P, side, side, 3] of a picture [height, width, 3] that is scaled to whole patches.

    Those that become one token follow one another.
    """
    height, width = pixels.shape[:2]
    side, merge = rule.patch, rule.merge
    unit = side * merge
    blocks = pixels.reshape(height // unit, merge, side, width // unit, merge, side, 3)
    return blocks.transpose(0, 3, 1, 4, 2, 5, 6).reshape(-1, side, side, 3)


def pack(grids: Sequence[Size], rule: PatchGrid, window_pixels: int = WINDOW_PIXELS) -> Packed:
    """Indices for pictures of these patch grids, in order."""
    span = window_pixels // rule.patch  # patches of a window's side
    positions = [_positions(grid, rule.merge) for grid in grids]
    keys = []  # picture and window of each patch, in one number that rises with the order of windows
    first = 0
    for grid, places in zip(grids, positions, strict=True):
        columns = -(-grid.width // span)
        rows = -(-grid.height // span)
        keys.append(first + places[:, 0] // span * columns + places[:, 1] // span)
        first += rows * columns
    key = np.concatenate(keys)
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key, minlength=first)
    starts = np.cumsum(counts) - counts
    slots = np.empty(len(key), np.int64)
    slots[order] = key[order] * span**2 + np.arange(len(key)) - starts[key[order]]
    windows = np.full(first * span**2, -1, np.int32)
    windows[slots] = np.arange(len(key))
    return Packed(
        positions=np.concatenate(positions).astype(np.int32),
        pictures=np.repeat(np.arange(len(grids)), [grid.area for grid in grids]).astype(np.int32),
        windows=windows.reshape(first, span**2),
        slots=slots.astype(np.int32),
    )


def tower_inputs(
    pictures: Sequence[NDArray[np.uint8]], rule: PatchGrid, window_pixels: int = WINDOW_PIXELS
) -> dict[str, NDArray[Any]]:
    """All inputs of the tower, by name, for arrays [n, height, width, 3] of pictures that are scaled already."""
    every = [pixels for array in pictures for pixels in array]
    grids = [Size(pixels.shape[1] // rule.patch, pixels.shape[0] // rule.patch) for pixels in every]
    patches = np.concatenate([cut_patches(pixels, rule) for pixels in every])
    return {"patches": patches, **vars(pack(grids, rule, window_pixels))}


def split_tokens(
    tokens: NDArray[np.float16], pictures: Sequence[NDArray[np.uint8]], rule: PatchGrid
) -> list[NDArray[np.float16]]:
    """Each array's own of the visual tokens [tokens, hidden] that the tower gave for `tower_inputs` of them."""
    ends = np.cumsum([array[..., 0].size // rule.unit**2 for array in pictures])
    return np.split(tokens, ends[:-1])


def _positions(grid: Size, merge: int) -> NDArray[np.int64]:
    """Row and column of each patch, in the order of `cut_patches`."""
    rows, columns = np.mgrid[: grid.height, : grid.width]
    both = np.stack((rows, columns), axis=-1)
    blocks = both.reshape(grid.height // merge, merge, grid.width // merge, merge, 2)
    in_order: NDArray[np.int64] = blocks.swapaxes(1, 2).reshape(-1, 2)
    return in_order
