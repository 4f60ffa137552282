"""A fake CUDA runtime (`cuda.bindings.runtime`), for machines without a GPU: its memory is the host's, shared by memfd.

As with the real one, memory goes with the process that allocated it, other processes open it by a handle of 64 bytes,
and that process itself can't.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400


class cudaIpcMemHandle_t:
    def __init__(self) -> None:
        self.reserved = bytes(64)


cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
cudaIpcMemLazyEnablePeerAccess = 1


class Device:
    """What is on it."""

    count = 1
    opens_own = False  # whether the process that allocated memory can open it
    free_bytes = 1 << 30
    allocated: ClassVar[dict[int, tuple[int, mmap.mmap]]] = {}  # address: descriptor, mapping
    opened: ClassVar[dict[int, mmap.mmap]] = {}  # address: mapping


def cudaSetDevice(number: int) -> tuple[cudaError_t]:
    if not Device.count:
        return (cudaError_t.cudaErrorNoDevice,)
    return (cudaError_t.cudaSuccess if number < Device.count else cudaError_t.cudaErrorInvalidDevice,)


def cudaMalloc(size: int) -> tuple[cudaError_t, int | None]:
    if size > Device.free_bytes:
        return cudaError_t.cudaErrorMemoryAllocation, None
    fd = os.memfd_create("fake-gpu")
    os.ftruncate(fd, size)
    address, memory = _map(fd)
    Device.allocated[address] = fd, memory
    return cudaError_t.cudaSuccess, address


def cudaIpcGetMemHandle(pointer: int) -> tuple[cudaError_t, cudaIpcMemHandle_t]:
    handle = cudaIpcMemHandle_t()
    handle.reserved = f"{os.getpid()}/{Device.allocated[pointer][0]}".encode().ljust(64, b"\0")
    return cudaError_t.cudaSuccess, handle


def cudaIpcOpenMemHandle(handle: cudaIpcMemHandle_t, flags: int) -> tuple[cudaError_t, int | None]:
    process, _, number = handle.reserved.rstrip(b"\0").decode().partition("/")
    if int(process) == os.getpid() and not Device.opens_own:
        return cudaError_t.cudaErrorInvalidResourceHandle, None
    try:
        fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    except OSError:
        return cudaError_t.cudaErrorInvalidResourceHandle, None
    address, memory = _map(fd)
    os.close(fd)
    Device.opened[address] = memory
    return cudaError_t.cudaSuccess, address


def cudaIpcCloseMemHandle(pointer: int) -> tuple[cudaError_t]:
    del Device.opened[pointer]
    return (cudaError_t.cudaSuccess,)


def cudaMemcpy(target: int, source: int, size: int, kind: int) -> tuple[cudaError_t]:
    ctypes.memmove(target, source, size)
    return (cudaError_t.cudaSuccess,)


def _map(fd: int) -> tuple[int, mmap.mmap]:
    memory = mmap.mmap(fd, 0)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def array_over(memory: Any) -> Any:
    """What `torch.as_tensor` makes of an object with `__cuda_array_interface__`: its memory, not a copy."""
    told = memory.__cuda_array_interface__
    dtype, shape = np.dtype(told["typestr"]), told["shape"]
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(told["data"][0]), dtype).reshape(shape)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put it in the place of cuda-python."""
    package, bindings, runtime = ModuleType("cuda"), ModuleType("cuda.bindings"), ModuleType("cuda.bindings.runtime")
    vars(runtime).update({name: value for name, value in globals().items() if name.startswith("cuda")})
    for module in (package, bindings, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Device, "free_bytes", 1 << 30)
    monkeypatch.setattr(Device, "count", 1)
    monkeypatch.setattr(Device, "opened", {})
