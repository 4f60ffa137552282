"""What every vision runtime is to the worker process that runs it (`workers.child`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]


class BatchedVision(ABC):
    """Encodes the tiles of several pictures as one, in batches that the runtime takes."""

    _batch_size: int  # tiles, the most at a time

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`encode`: each array is tiles uint8 [n, H, W, 3]; gives float16 [n x T, hidden] for each.

        meta["encode_ms"] is the time of the whole call.
        """
        if op != "encode":
            raise ValueError(f"unknown operation {op!r}")
        started = time.perf_counter()
        tiles, step = np.concatenate(arrays), self._batch_size
        tokens = np.concatenate([self._encode(tiles[first : first + step]) for first in range(0, len(tiles), step)])
        ends = np.cumsum([len(array) for array in arrays])
        outputs = [part.reshape(-1, part.shape[-1]) for part in np.split(tokens, ends[:-1])]
        return outputs, {"encode_ms": (time.perf_counter() - started) * 1000}

    @abstractmethod
    def _encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        """Visual tokens [n, T, hidden] of tiles uint8 [n, H, W, 3], n at most the batch size; not overwritten later."""
