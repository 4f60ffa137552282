"""A fake TensorRT and CUDA, for machines without a GPU: contexts, profiles, streams and graphs over NumPy.

The "plan" is JSON: profiles as [smallest, tuned for, largest]. The "network" gives every tile's mean as its tokens; one
of packed patches, whose profiles are shapes of each input, the mean of four patches as it finds them in their windows.
A context refuses shapes outside its profile, as the real one does, and what is captured runs only when replayed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.fakes.cuda import array_over

SIDE, TOKENS, HIDDEN, MERGED = 8, 2, 4, 4


class Tensor:
    """Of `torch`, as far as the encoder uses it."""

    by_address: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, values: Any) -> None:
        self.values = values
        self.by_address[id(self)] = self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __len__(self) -> int:
        return len(self.values)

    def reshape(self, *shape: int) -> Tensor:
        return Tensor(self.values.reshape(shape))

    def index_select(self, axis: int, index: Tensor) -> Tensor:
        return Tensor(self.values[index.values])

    def index_copy_(self, axis: int, index: Tensor, rows: Tensor) -> None:
        assert axis == 0 and rows.values.dtype == self.values.dtype
        self.values[index.values] = rows.values

    def data_ptr(self) -> int:
        return id(self)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.values[index])

    def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
        self.values[...] = other.values

    def to(self, target: Any) -> Tensor:
        return self if target == "cuda" else Tensor(self.values.astype(target))

    def cpu(self) -> Any:
        return self.values


class Cuda:
    """`torch.cuda`."""

    capturing: list[Any] | None = None
    lost = False  # a kernel has failed: nothing works any more

    def __init__(self) -> None:
        self.CUDAGraph = _Graph

    @staticmethod
    def is_available() -> bool:
        return True

    @classmethod
    def synchronize(cls) -> None:
        if cls.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    @staticmethod
    def Stream() -> Any:
        return SimpleNamespace(cuda_stream=1, synchronize=lambda: None)

    @staticmethod
    def current_stream() -> Any:
        return SimpleNamespace(cuda_stream=1, synchronize=lambda: None)

    @staticmethod
    @contextmanager
    def stream(stream: Any) -> Iterator[None]:
        yield

    @staticmethod
    @contextmanager
    def graph(graph: _Graph, stream: Any) -> Iterator[None]:
        Cuda.capturing = graph.kernels
        yield
        Cuda.capturing = None


class _Graph:
    def __init__(self) -> None:
        self.kernels: list[Any] = []

    def replay(self) -> None:
        RUNS.append("graph")
        for kernel in self.kernels:
            kernel()


RUNS: list[Any] = []  # "graph" for a replay, (profile, batch) for a run of a context


class _Context:
    def __init__(self, profiles: list[dict[str, list[tuple[int, ...]]]]) -> None:
        self._profiles = profiles
        self._profile = 0
        self._tensors: dict[str, Tensor] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self._profile = index
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._tensors[name] = Tensor.by_address[address]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self._profiles[self._profile][name]
        inside = [least <= side <= most for least, side, most in zip(low, shape, high, strict=True)]
        assert all(inside), f"{name} {shape} is outside profile {self._profile}"
        self._shapes[name] = shape
        return True

    def execute_async_v3(self, stream: int) -> bool:
        if Cuda.lost:
            return False
        tensors, shapes = dict(self._tensors), dict(self._shapes)
        assert set(shapes) == set(tensors) - {"visual_tokens"}, "an input without a shape"

        def kernel() -> None:
            inputs = {
                name: tensors[name].values.reshape(-1)[: np.prod(shape)].reshape(shape)
                for name, shape in shapes.items()
            }
            rows = inputs["tiles"].mean(axis=(1, 2, 3)) if "tiles" in inputs else _patch_means(inputs)
            output = tensors["visual_tokens"].values
            output[: len(rows)] = rows.reshape(-1, *[1] * (output.ndim - 1))

        batch = shapes["tiles" if "tiles" in shapes else "patches"][0]
        if Cuda.capturing is not None:
            Cuda.capturing.append(kernel)
        else:
            RUNS.append((self._profile, batch))
            kernel()
        return True


def _patch_means(inputs: dict[str, Any]) -> Any:
    """By way of the windows and back; padding is white, and must not be seen."""
    means = np.append(inputs["patches"].mean(axis=(1, 2, 3)), 255.0)
    found = means[inputs["windows"]].reshape(-1)[inputs["slots"]]
    return found.reshape(-1, MERGED).mean(axis=1)


class _Engine:
    def __init__(self, plan: dict[str, Any]) -> None:
        of_patches = isinstance(plan["profiles"][0], dict)
        self._profiles = [
            profile if of_patches else {"tiles": [(batch, SIDE, SIDE, 3) for batch in profile]}
            for profile in plan["profiles"]
        ]
        self._names = plan.get("tensors", [*self._profiles[0], "visual_tokens"])
        self._output = (-1, HIDDEN) if of_patches else (-1, TOKENS, HIDDEN)

    @property
    def num_io_tensors(self) -> int:
        return len(self._names)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def get_tensor_name(self, index: int) -> str:
        return str(self._names[index])

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._profiles[index][name]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._output

    def get_tensor_dtype(self, name: str) -> str:
        return "half"

    def create_execution_context(self) -> _Context:
        return _Context(self._profiles)


class Logger:
    WARNING = 1

    def __init__(self, level: int) -> None:
        pass


class DataType:
    HALF, BF16 = "half", "bf16"


class Runtime:
    def __init__(self, logger: Logger) -> None:
        pass

    def deserialize_cuda_engine(self, data: bytes) -> _Engine | None:
        return _Engine(json.loads(data)) if data.startswith(b"{") else None


def _zeros(shape: tuple[int, ...], dtype: Any, device: str = "cpu", pin_memory: bool = False) -> Tensor:
    return Tensor(np.zeros(shape, dtype))


def _as_tensor(memory: Any, device: str) -> Tensor:
    return Tensor(array_over(memory))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes in the places of `tensorrt` and `torch`."""
    torch = ModuleType("torch")
    vars(torch).update(
        cuda=Cuda(), zeros=_zeros, from_numpy=Tensor, as_tensor=_as_tensor,
        uint8=np.uint8, int32=np.int32, float16=np.float16, float32=np.float32, bfloat16=np.float32,
    )  # fmt: skip
    package = ModuleType("tensorrt")
    vars(package).update(Logger=Logger, Runtime=Runtime, DataType=DataType)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "tensorrt", package)
    RUNS.clear()
    monkeypatch.setattr(Cuda, "lost", False)
