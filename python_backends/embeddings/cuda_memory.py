"""Memory of a GPU that one process allocates and others open, by CUDA IPC (cuda-python's runtime API)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.errors import unavailable
from python_backends.workers.targets import MissingRuntime, require

HANDLE_BYTES = 64  # CUDA_IPC_HANDLE_SIZE
_REMEDY = "run in the image of containers/Dockerfile, or set cache.memory: host"


class DeviceMemory:
    """Allocated here, on the GPU of this number as this process counts them.

    It goes with the process: to free it while another has it open is undefined in CUDA, and who has is not known.
    """

    def __init__(self, gpu: int, size: int) -> None:
        """Raises MissingRuntime: no cuda-python, no such GPU, or not so many bytes are free on it."""
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts, and as workers do
        self._runtime = require("cuda.bindings.runtime", "cuda-python", _REMEDY)
        self._gpu = gpu
        self._ask(f"use GPU {gpu}", self._runtime.cudaSetDevice(gpu))
        wanted = f"have {size >> 20} MB (cache.encoder_mb) on GPU {gpu}"
        (self._pointer,) = self._ask(wanted, self._runtime.cudaMalloc(size))
        (handle,) = self._ask("share GPU memory", self._runtime.cudaIpcGetMemHandle(self._pointer))
        self.handle = bytes(handle.reserved)

    def put(self, offset: int, array: NDArray[Any]) -> None:
        """Copy an array there."""
        array = np.ascontiguousarray(array)
        self._copy(self._pointer + offset, array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")

    def get(self, offset: int, array: NDArray[Any]) -> None:
        """Fill a contiguous array from there."""
        self._copy(array.ctypes.data, self._pointer + offset, array.nbytes, "cudaMemcpyDeviceToHost")

    def _copy(self, target: int, source: int, size: int, kind: str) -> None:
        self._runtime.cudaSetDevice(self._gpu)  # a setting of each thread
        answer = self._runtime.cudaMemcpy(target, source, size, getattr(self._runtime.cudaMemcpyKind, kind))
        if answer[0].value:
            raise unavailable(f"pages: GPU memory can't be copied ({answer[0].name})")

    @staticmethod
    def _ask(what: str, answer: Any) -> Any:
        error, *values = answer
        if error.value:
            raise MissingRuntime(f"the embedding pool can't {what} ({error.name}): {_REMEDY}")
        return values


class OpenedMemory:
    """Another process's, as a float16 matrix that PyTorch can take without a copy."""

    def __init__(self, handle: bytes, shape: tuple[int, int]) -> None:
        """Raises ServingError, UNAVAILABLE: it is gone. The process that allocated it can't open it."""
        self._runtime = require("cuda.bindings.runtime", "cuda-python", _REMEDY)
        named = self._runtime.cudaIpcMemHandle_t()
        named.reserved = handle
        answer = self._runtime.cudaIpcOpenMemHandle(named, self._runtime.cudaIpcMemLazyEnablePeerAccess)
        if answer[0].value:
            raise unavailable(f"pages: the router's GPU memory can't be opened ({answer[0].name})")
        self._pointer: int | None = int(answer[1])
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f2",
            "data": (self._pointer, False),
            "version": 3,
        }

    def close(self) -> None:
        """No tensor over it may be used after this."""
        if self._pointer is not None:
            self._runtime.cudaIpcCloseMemHandle(self._pointer)
            self._pointer = None
