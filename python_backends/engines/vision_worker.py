"""What every vision runtime is to the worker process that runs it (`workers.child`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import NativeResolution
from python_backends.media.layout import patch_grid
from python_backends.media.patches import split_tokens, tower_inputs

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


class PackedVision(ABC):
    """Encodes pictures of any sizes as packed patches, all of a call in one batch: the stage bounds it.

    config: native (of the checkpoint's facts), image_size (pixels of a side of an example picture, to warm up with).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        native = NativeResolution.model_validate(config["native"])
        self._rule, self._window, self._side = patch_grid(native), native.window, int(config["image_size"])

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`encode`: each array is pictures uint8 [n, H, W, 3] of whole tokens; gives float16 [n x tokens, hidden].

        meta["encode_ms"] is the time of the whole call.
        """
        if op != "encode":
            raise ValueError(f"unknown operation {op!r}")
        started = time.perf_counter()
        outputs: Arrays = list(split_tokens(self._encode(*self._packed(arrays)), arrays, self._rule))
        return outputs, {"encode_ms": (time.perf_counter() - started) * 1000}

    def _packed(self, arrays: Arrays) -> tuple[Mapping[str, NDArray[Any]], int]:
        """The tower's inputs, and how many visual tokens come of them."""
        inputs = tower_inputs(arrays, self._rule, self._window)
        return inputs, len(inputs["patches"]) // self._rule.merge**2

    def _warm_up(self) -> None:
        self.handle("encode", [np.zeros((1, self._side, self._side, 3), np.uint8)], {})

    @abstractmethod
    def _encode(self, inputs: Mapping[str, NDArray[Any]], tokens: int) -> NDArray[np.float16]:
        """So many visual tokens [tokens, hidden] of the tower's inputs by name; not overwritten later."""
