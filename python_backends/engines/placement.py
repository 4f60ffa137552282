"""Which rows of a vision tower go where in the pages of an embedding pool: plans for calls of its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.target import PageTarget
from python_backends.engines.towers import Tiles, Tower
from python_backends.errors import invalid
from python_backends.media.packing import ROW_END
from python_backends.media.tiling import Size


@dataclass(frozen=True)
class Placed:
    """A picture whose visual tokens can be written into pages."""

    tiles: Tiles
    sources: NDArray[np.int32]  # see Tower.sources
    target: PageTarget

    @classmethod
    def plan(cls, tower: Tower, tiles: Tiles, size: Size, target: PageTarget) -> Placed | None:
        """None: its tokens are not rows of the tower (ServingError: another number than the pages are for)."""
        sources = tower.sources(tiles, size)
        if sources is None:
            return None
        if len(sources) != target.tokens:
            raise invalid("page_rows", f"{target.tokens}, where the picture becomes {len(sources)} visual tokens")
        return cls(tiles, sources, target)


def calls(tower: Tower, pictures: Sequence[Placed]) -> Iterator[list[NDArray[Any]]]:
    """Arrays of each call of the worker's `encode_into` (see vision_on_gpu) for pictures that go into one pool."""
    begins = np.cumsum([0, *(tower.rows(picture.tiles) for picture in pictures)])
    sources = np.concatenate([
        np.where(picture.sources == ROW_END, ROW_END, picture.sources + begin)
        for picture, begin in zip(pictures, begins, strict=False)
    ])  # fmt: skip
    places = np.concatenate([picture.target.rows() for picture in pictures])
    first = 0
    for arrays in tower.calls([picture.tiles for picture in pictures]):
        end = first + sum(tower.rows(array) for array in arrays)
        ends_rows = (sources == ROW_END) & (first == 0)  # which are of no call: they go with the first
        own = ends_rows | ((sources >= first) & (sources < end))
        local = np.where(ends_rows[own], ROW_END, sources[own] - first)
        yield [local.astype(np.int32), places[own], tower.row_end, *arrays]
        first = end
