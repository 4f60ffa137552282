"""The embedding pool's memory: pages of visual tokens that the router writes and the decoder workers read by number.

The region is a memfd. It has no name in /dev/shm, so no death of a process can leave it behind; readers reach it
through /proc/PID/fd of the router, and keep their mapping when the router dies. Only the router writes.

A reader may be late: its request was given up, and the pages were given to another image. So every page has a
generation, counted up before the page is written anew, and a reader that does not find the generation it was told
before *and* after its copy has copied nothing that may be used.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.half import put_rows
from python_backends.errors import ServingError, Status, unavailable

_HEADER = np.dtype([("id", "S16"), ("pages", "<i8"), ("page_tokens", "<i8"), ("hidden", "<i8"), ("spare", "S24")])
_ALIGN = mmap.PAGESIZE

PAGE, GENERATION, ROWS = range(3)  # columns of a list of pages, int64 [pages, 3]; ROWS: how many of its rows count
NO_PAGES: NDArray[np.int64] = np.zeros((0, 3), np.int64)


@dataclass(frozen=True)
class Geometry:
    """How the region is cut up."""

    pages: int
    page_tokens: int
    hidden: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, float16."""
        return self.page_tokens * self.hidden * 2

    @property
    def data_offset(self) -> int:
        """The first byte of page 0, after the header and the generations."""
        return -(-(_HEADER.itemsize + 8 * self.pages) // _ALIGN) * _ALIGN

    @property
    def total_bytes(self) -> int:
        """Of the whole region."""
        return self.data_offset + self.pages * self.page_bytes


class _Mapped:
    def __init__(self, fd: int, geometry: Geometry, access: int) -> None:
        # kept mapped by the arrays; there is nothing to close
        memory = mmap.mmap(fd, geometry.total_bytes, access=access)
        self.generations: NDArray[np.int64] = np.frombuffer(memory, "<i8", geometry.pages, _HEADER.itemsize)
        shape = (geometry.pages, geometry.page_tokens, geometry.hidden)
        flat = np.frombuffer(memory, np.float16, int(np.prod(shape)), geometry.data_offset)
        self.data: NDArray[np.float16] = flat.reshape(shape)
        self.header: NDArray[Any] = np.frombuffer(memory, _HEADER, 1)
        self.geometry = geometry


class PoolRegion:
    """The router's end. Memory is taken only for pages that were written."""

    def __init__(self, geometry: Geometry) -> None:
        self._fd = os.memfd_create("tvlm-embedding-pool", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, geometry.total_bytes)
        self._mapped = _Mapped(self._fd, geometry, mmap.ACCESS_WRITE)
        identity = secrets.token_hex(8)
        self._mapped.header[0] = (identity.encode(), geometry.pages, geometry.page_tokens, geometry.hidden, b"")
        self.address = f"{os.getpid()}/{self._fd}/{identity}"

    def write(self, pages: Sequence[int], visual_tokens: NDArray[np.float16]) -> None:
        """Put rows [tokens, hidden] into pages of one's own; what was in them can't be read any more."""
        mapped, step = self._mapped, self._mapped.geometry.page_tokens
        mapped.generations[list(pages)] += 1
        for at, page in enumerate(pages):
            part = visual_tokens[at * step : (at + 1) * step]
            mapped.data[page, : len(part)] = part

    def read(self, pages: Sequence[int], tokens: int) -> NDArray[np.float16]:
        """A copy of `tokens` rows [tokens, hidden] in pages of one's own."""
        rows: NDArray[np.float16] = self._mapped.data[list(pages)].reshape(-1, self._mapped.geometry.hidden)
        return rows[:tokens]

    def page_list(self, pages: Sequence[int], tokens: int) -> NDArray[np.int64]:
        """What a reader has to be told to get `tokens` rows out of these pages."""
        step = self._mapped.geometry.page_tokens
        listed = np.full((len(pages), 3), step, np.int64)
        listed[:, PAGE] = pages
        listed[:, GENERATION] = self._mapped.generations[list(pages)]
        listed[-1, ROWS] = tokens - (len(pages) - 1) * step
        return listed

    def close(self) -> None:
        """No reader finds it any more; the memory goes with the last mapping."""
        os.close(self._fd)


class PoolReader:
    """A decoder worker's end: maps the region of whoever submits, one at a time (a new router has a new region)."""

    def __init__(self) -> None:
        self._address = ""
        self._mapped: _Mapped | None = None

    def copy(
        self, address: str, pages: NDArray[np.int64], target: NDArray[np.float32], places: NDArray[np.int64]
    ) -> None:
        """Copy the rows of the listed pages to the rows `places` of `target` [tokens, hidden].

        Raises:
            ServingError: UNAVAILABLE when the router or the pages are gone; INTERNAL when the list is wrong;
                INVALID_ARG when a value is not finite.
        """
        mapped = self._map(address)
        geometry, rows = mapped.geometry, pages[:, ROWS]
        if (
            target.shape[1] != geometry.hidden
            or rows.sum() != len(places)
            or not (pages[:, PAGE] >= 0).all()
            or not (pages[:, PAGE] < geometry.pages).all()
            or not ((rows > 0) & (rows <= geometry.page_tokens)).all()
        ):
            raise ServingError(Status.INTERNAL, "pages: the list does not fit the embedding pool or the prompt")
        self._check(mapped, pages)
        at = 0
        for page, count in zip(pages[:, PAGE].tolist(), rows.tolist(), strict=True):
            put_rows(mapped.data[page, :count], target, places[at : at + count])
            at += count
        self._check(mapped, pages)

    def _check(self, mapped: _Mapped, pages: NDArray[np.int64]) -> None:
        if (mapped.generations[pages[:, PAGE]] != pages[:, GENERATION]).any():
            raise unavailable("pages: they were given to another image meanwhile")

    def _map(self, address: str) -> _Mapped:
        if self._mapped is None or address != self._address:
            self._mapped = None  # of a router that is gone
            self._mapped = _open(address)
            self._address = address
        return self._mapped


_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never wait, should it be a pipe of somebody


def _open(address: str) -> _Mapped:
    process, number, identity = address.split("/")
    try:
        fd = os.open(f"/proc/{int(process)}/fd/{int(number)}", _READ_FLAGS)
    except OSError as error:
        raise unavailable(f"pages: the router's embedding pool can't be opened: {error.strerror}") from None
    try:
        content = os.pread(fd, _HEADER.itemsize, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        header = np.frombuffer(content.ljust(_HEADER.itemsize, b"\0"), _HEADER)[0]
        if header["id"] != identity.encode():  # the process number was given to another process
            raise unavailable("pages: the router's embedding pool is gone")
        geometry = Geometry(int(header["pages"]), int(header["page_tokens"]), int(header["hidden"]))
        return _Mapped(fd, geometry, mmap.ACCESS_READ)
    finally:
        os.close(fd)
