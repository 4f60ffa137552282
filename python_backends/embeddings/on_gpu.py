"""The embedding pool on a GPU, as the workers of encoder and decoder see it: rows in, pages out, all on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.cuda_memory import OpenedMemory
from python_backends.embeddings.region import PAGE, ROWS, Mapped, PoolReader
from python_backends.errors import ServingError, Status, invalid


class DevicePool:
    """Opens the memory of whoever asks, one at a time (a new router has new memory); one thread."""

    def __init__(self, torch: Any) -> None:
        self.reader = PoolReader()
        self._torch = torch
        self._mapped: Mapped | None = None  # that is open
        self._memory: OpenedMemory | None = None
        self._rows: Any = None  # [rows, hidden], float16

    def is_on_gpu(self, address: str) -> bool:
        """Whether a pool's pages are on a GPU (ServingError: it is gone)."""
        return self.reader.open(address).handle is not None

    def put(self, address: str, places: NDArray[np.int32], rows: Any, sources: NDArray[np.int32]) -> None:
        """`pool[places] = rows[sources]`; done when it returns. `rows` [n, hidden] is a tensor on the GPU.

        Raises:
            ServingError: UNAVAILABLE when the router is gone; INVALID_ARG when the rows do not fit the pool.
        """
        mapped, pool = self._open(address)
        geometry = mapped.geometry
        if rows.shape[1] != geometry.hidden or places.max(initial=0) >= geometry.pages * geometry.page_tokens:
            raise invalid("pages", f"must be below {geometry.pages}, of rows of {geometry.hidden} elements")
        pool.index_copy_(0, self._index(places), rows.index_select(0, self._index(sources)))
        self._torch.cuda.current_stream().synchronize()

    def take(self, address: str, pages: NDArray[np.int64], count: int) -> Any:
        """The `count` rows of the listed pages (see region): a tensor [count, hidden] of its own on the GPU.

        Raises:
            ServingError: as `PoolReader.copy`.
        """
        mapped, pool = self._open(address)
        mapped.check_list(pages, count)
        mapped.check_generations(pages)
        step = mapped.geometry.page_tokens
        counts = pages[:, ROWS]
        within = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = pool.index_select(0, self._index(np.repeat(pages[:, PAGE] * step, counts) + within))
        finite = bool(self._torch.isfinite(rows).all())  # waits for the copy
        mapped.check_generations(pages)
        if not finite:
            raise invalid("visual_tokens", "hold values that are not finite")
        return rows

    def _open(self, address: str) -> tuple[Mapped, Any]:
        mapped = self.reader.open(address)
        if mapped is not self._mapped:
            self._rows = self._mapped = None
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            if mapped.handle is None:
                raise ServingError(Status.INTERNAL, "pages: the embedding pool is in host memory")
            geometry = mapped.geometry
            self._memory = OpenedMemory(mapped.handle, (geometry.pages * geometry.page_tokens, geometry.hidden))
            self._rows = self._torch.as_tensor(self._memory, device="cuda")
            self._mapped = mapped
        return mapped, self._rows

    def _index(self, numbers: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(numbers, np.int64)).to("cuda")
