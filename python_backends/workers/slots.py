"""Slots of anonymous shared memory in which arrays cross between a stub and its worker.

The region is a memfd: it has no name in /dev/shm, so no crash can leave it behind. It is sparse: a slot costs memory
only as far as it was ever written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ALIGN = 64


@dataclass(frozen=True)
class ArrayRef:
    """Where an array lies: byte offset from the start of its slot."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class SlotOverflow(ValueError):
    """The arrays do not fit into one slot."""


class SlotMemory:
    """`count` slots of `slot_bytes` each; both processes map the same memfd."""

    def __init__(self, fd: int, count: int, slot_bytes: int) -> None:
        self.fd = fd
        self.count = count
        self.slot_bytes = slot_bytes
        self._map = mmap.mmap(fd, count * slot_bytes)

    @classmethod
    def create(cls, name: str, count: int, slot_bytes: int) -> SlotMemory:
        """Make the region; the parent's side."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, count * slot_bytes)
        return cls(fd, count, slot_bytes)

    def write(self, slot: int, arrays: Sequence[NDArray[np.generic]], start: int = 0) -> list[ArrayRef]:
        """Copy arrays into a slot from byte `start` on (SlotOverflow)."""
        refs = []
        offset = start
        for array in arrays:
            offset = -(-offset // _ALIGN) * _ALIGN
            ref = ArrayRef(offset, array.shape, array.dtype.str)
            if offset + array.nbytes > self.slot_bytes:
                raise SlotOverflow(f"{offset + array.nbytes} bytes are more than a slot's {self.slot_bytes}")
            self.view(slot, ref)[...] = array
            refs.append(ref)
            offset += array.nbytes
        return refs

    def view(self, slot: int, ref: ArrayRef) -> NDArray[np.generic]:
        """The array itself, without a copy; valid until the slot is given back."""
        dtype = np.dtype(ref.dtype)
        count = int(np.prod(ref.shape, dtype=np.int64))
        flat = np.frombuffer(self._map, dtype, count, slot * self.slot_bytes + ref.offset)
        return flat.reshape(ref.shape)

    def close(self) -> None:
        """Give up the descriptor and the mapping (which goes with the last view when there still are some)."""
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self._map.close()


def end_of(refs: Sequence[ArrayRef]) -> int:
    """The first byte after the last array."""
    if not refs:
        return 0
    last = refs[-1]
    return last.offset + int(np.prod(last.shape, dtype=np.int64)) * np.dtype(last.dtype).itemsize
