"""The embedding pool's memory: pages of visual tokens that the router writes and the decoder workers read by number.

The region is a memfd. It has no name in /dev/shm, so no death of a process can leave it behind; readers reach it
through /proc/PID/fd of the router, and keep their mapping when the router dies. Only the router writes.

Where encoder and decoder share a GPU the pages are in its memory (`cuda_memory`), and the region holds the handle to
it; the encoder writes them, when the router told it which. Everything else is the same.

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

from python_backends.embeddings.cuda_memory import HANDLE_BYTES, DeviceMemory
from python_backends.embeddings.half import put_rows
from python_backends.errors import ServingError, Status, invalid, unavailable

_HEADER = np.dtype(
    [
        ("id", "S16"), ("pages", "<i8"), ("page_tokens", "<i8"), ("hidden", "<i8"),
        ("on_gpu", "<i8"), ("handle", "u1", HANDLE_BYTES), ("spare", "S16"),
    ]
)  # fmt: skip
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
    def data_bytes(self) -> int:
        """Of all pages."""
        return self.pages * self.page_bytes


class Mapped:
    """The region as a process has it mapped."""

    def __init__(self, fd: int, geometry: Geometry, access: int, handle: bytes | None) -> None:
        """`handle`: of the GPU memory that the pages are in; None: they are in the region."""
        data_bytes = geometry.data_bytes if handle is None else 0
        # kept mapped by the arrays; there is nothing to close
        memory = mmap.mmap(fd, geometry.data_offset + data_bytes, access=access)
        self.generations: NDArray[np.int64] = np.frombuffer(memory, "<i8", geometry.pages, _HEADER.itemsize)
        flat = np.frombuffer(memory, np.float16, data_bytes // 2, geometry.data_offset)
        self.data: NDArray[np.float16] = flat.reshape(-1, geometry.page_tokens, geometry.hidden)
        self.header: NDArray[Any] = np.frombuffer(memory, _HEADER, 1)
        self.geometry = geometry
        self.handle = handle

    def check_list(self, pages: NDArray[np.int64], count: int) -> None:
        """Refuse a list that does not point to `count` rows of the region (ServingError, INTERNAL)."""
        numbers, rows = pages[:, PAGE], pages[:, ROWS]
        if (
            rows.sum() != count
            or not ((numbers >= 0) & (numbers < self.geometry.pages)).all()
            or not ((rows > 0) & (rows <= self.geometry.page_tokens)).all()
        ):
            raise ServingError(Status.INTERNAL, "pages: the list does not fit the embedding pool or the prompt")

    def check_generations(self, pages: NDArray[np.int64]) -> None:
        """Refuse pages that hold something else by now (ServingError, UNAVAILABLE)."""
        if (self.generations[pages[:, PAGE]] != pages[:, GENERATION]).any():
            raise unavailable("pages: they were given to another image meanwhile")


class PoolRegion:
    """The router's end. Memory of the host is taken only for pages that were written, a GPU's at once."""

    def __init__(self, geometry: Geometry, gpu: int | None = None) -> None:
        """`gpu`: whose memory the pages are in; None: the host's (MissingRuntime, see DeviceMemory)."""
        self._device = None if gpu is None or not geometry.pages else DeviceMemory(gpu, geometry.data_bytes)
        self._fd = os.memfd_create("tvlm-embedding-pool", os.MFD_CLOEXEC)
        handle = None if self._device is None else self._device.handle
        os.ftruncate(self._fd, geometry.data_offset + (geometry.data_bytes if handle is None else 0))
        self._mapped = Mapped(self._fd, geometry, mmap.ACCESS_WRITE, handle)
        identity = secrets.token_hex(8)
        sizes = (geometry.pages, geometry.page_tokens, geometry.hidden)
        told = np.frombuffer(handle or bytes(HANDLE_BYTES), np.uint8)
        self._mapped.header[0] = (identity.encode(), *sizes, handle is not None, told, b"")
        self.address = f"{os.getpid()}/{self._fd}/{identity}"

    @property
    def on_gpu(self) -> bool:
        """Whether the encoder can write the pages."""
        return self._device is not None

    def renew(self, pages: Sequence[int]) -> None:
        """What was in these pages can't be read any more: they are about to be written."""
        self._mapped.generations[list(pages)] += 1

    def write(self, pages: Sequence[int], visual_tokens: NDArray[np.float16]) -> None:
        """Put rows [tokens, hidden] into pages of one's own; what was in them can't be read any more."""
        geometry, step = self._mapped.geometry, self._mapped.geometry.page_tokens
        self.renew(pages)
        for at, page in enumerate(pages):
            part = visual_tokens[at * step : (at + 1) * step]
            if self._device is None:
                self._mapped.data[page, : len(part)] = part
            else:
                self._device.put(page * geometry.page_bytes, part)

    def read(self, pages: Sequence[int], tokens: int) -> NDArray[np.float16]:
        """A copy of `tokens` rows [tokens, hidden] in pages of one's own."""
        geometry = self._mapped.geometry
        if self._device is None:
            found: NDArray[np.float16] = self._mapped.data[list(pages)]
        else:
            found = np.empty((len(pages), geometry.page_tokens, geometry.hidden), np.float16)
            for at, page in enumerate(pages):
                self._device.get(page * geometry.page_bytes, found[at])
        rows: NDArray[np.float16] = found.reshape(-1, geometry.hidden)[:tokens]
        return rows

    def page_list(self, pages: Sequence[int], tokens: int) -> NDArray[np.int64]:
        """What a reader has to be told to get `tokens` rows out of these pages."""
        step = self._mapped.geometry.page_tokens
        listed = np.full((len(pages), 3), step, np.int64)
        listed[:, PAGE] = pages
        listed[:, GENERATION] = self._mapped.generations[list(pages)]
        listed[-1, ROWS] = tokens - (len(pages) - 1) * step
        return listed

    def close(self) -> None:
        """No reader finds it any more; the memory goes with the last mapping, a GPU's with the process."""
        os.close(self._fd)


class PoolReader:
    """A decoder worker's end: maps the region of whoever submits, one at a time (a new router has a new region)."""

    def __init__(self) -> None:
        self._address = ""
        self._mapped: Mapped | None = None

    def copy(
        self, address: str, pages: NDArray[np.int64], target: NDArray[np.float32], places: NDArray[np.int64]
    ) -> None:
        """Copy the rows of the listed pages to the rows `places` of `target` [tokens, hidden].

        Raises:
            ServingError: UNAVAILABLE when the router or the pages are gone; INTERNAL when the list is wrong;
                INVALID_ARG when a value is not finite.
        """
        mapped = self.open(address)
        if target.shape[1] != mapped.geometry.hidden or mapped.handle is not None:
            raise ServingError(Status.INTERNAL, "pages: the list does not fit the embedding pool or the prompt")
        mapped.check_list(pages, len(places))
        mapped.check_generations(pages)
        at = 0
        for page, count in zip(pages[:, PAGE].tolist(), pages[:, ROWS].tolist(), strict=True):
            put_rows(mapped.data[page, :count], target, places[at : at + count])
            at += count
        mapped.check_generations(pages)

    def open(self, address: str) -> Mapped:
        """The region of this address, mapped for reading (ServingError, UNAVAILABLE: it is gone)."""
        if self._mapped is None or address != self._address:
            self._mapped = None  # of a router that is gone
            self._mapped = _open(address)
            self._address = address
        return self._mapped


_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # never wait, should it be a pipe of somebody


def _open(address: str) -> Mapped:
    process, _, rest = address.partition("/")
    number, _, identity = rest.partition("/")
    if not (process.isdecimal() and number.isdecimal()):
        raise invalid("pool", "is not the address of an embedding pool")
    try:
        fd = os.open(f"/proc/{process}/fd/{number}", _READ_FLAGS)
    except OSError as error:
        raise unavailable(f"pages: the router's embedding pool can't be opened: {error.strerror}") from None
    try:
        content = os.pread(fd, _HEADER.itemsize, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        header = np.frombuffer(content.ljust(_HEADER.itemsize, b"\0"), _HEADER)[0]
        if header["id"] != identity.encode():  # the process number was given to another process
            raise unavailable("pages: the router's embedding pool is gone")
        geometry = Geometry(int(header["pages"]), int(header["page_tokens"]), int(header["hidden"]))
        return Mapped(fd, geometry, mmap.ACCESS_READ, header["handle"].tobytes() if header["on_gpu"] else None)
    finally:
        os.close(fd)
