"""Vision workers whose tower is on a GPU: visual tokens go from there into pages of the embedding pool."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.on_gpu import DevicePool
from python_backends.errors import ServingError, tagged
from python_backends.media.packing import ROW_END

Arrays = list[NDArray[Any]]
Handle = Callable[[str, Arrays, dict[str, Any]], tuple[Arrays, dict[str, Any]]]

log = logging.getLogger(__name__)


class VisionOnGpu(ABC):
    """The operation `encode_into`, beside a worker's `encode`; and the end of a process that has lost its GPU.

    Its arrays are those of `encode` after three others: of each visual token the row of the tower's that it is (int32,
    or ROW_END), and its place in the pool (int32), and the token at the end of a row (float16 [0 or 1, hidden]). It
    answers with no arrays. meta: pool (address); of the answer: encode_ms, and refused, a tagged error, if it is one.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pool = DevicePool(torch)

    def on_gpu(self, op: str, arrays: Arrays, meta: dict[str, Any], encode: Handle) -> tuple[Arrays, dict[str, Any]]:
        """Do `encode_into`, or what the worker's own `encode` does."""
        try:
            return self._into_pages(arrays, meta) if op == "encode_into" else encode(op, arrays, meta)
        except Exception:
            self._end_if_lost()
            raise

    def _end_if_lost(self) -> None:
        """After an error of a kernel a CUDA context is good for nothing: a new process has a new one."""
        try:
            self._torch.cuda.synchronize()
        except Exception:
            log.exception("the CUDA context is lost: this worker ends")
            logging.shutdown()
            os._exit(1)

    def _into_pages(self, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        started = time.perf_counter()
        try:
            self._put(meta["pool"], arrays)
        except ServingError as error:
            return [], {"refused": tagged(error)}
        return [], {"encode_ms": (time.perf_counter() - started) * 1000}

    @abstractmethod
    def parts(self, arrays: Arrays) -> Iterator[Any]:
        """The tower's rows of a call in order: tensors [rows, hidden] on the GPU, each valid until the next."""

    def _put(self, pool: str, arrays: Arrays) -> None:
        sources, places, row_end, *pictures = arrays
        first = 0
        for rows in self.parts(pictures):
            own = (sources >= first) & (sources < first + rows.shape[0])
            self._pool.put(pool, places[own], rows, sources[own] - first)
            first += rows.shape[0]
        ends = places[sources == ROW_END]
        if len(ends):
            self._pool.put(pool, ends, self._torch.from_numpy(row_end).to("cuda"), np.zeros(len(ends), np.int32))
