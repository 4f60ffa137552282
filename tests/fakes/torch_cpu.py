"""A fake `torch` for machines without PyTorch or a GPU: what the TensorRT-LLM adapter uses of it, over NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fakes.cuda import array_over

float16, float32, bfloat16 = np.float16, np.float32, np.float32  # NumPy has no bfloat16


class Tensor:
    def __init__(self, values: NDArray[Any], is_cuda: bool = False) -> None:
        self.values = values
        self.is_cuda = is_cuda  # stands for a tensor on a GPU, which there is none of

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to(self, target: Any) -> Tensor:
        return Tensor(self.values, True) if target == "cuda" else Tensor(self.values.astype(target), self.is_cuda)

    def split(self, counts: Sequence[int]) -> list[Tensor]:
        return [Tensor(part, self.is_cuda) for part in np.split(self.values, np.cumsum(counts)[:-1])]

    def clone(self) -> Tensor:
        return Tensor(self.values.copy(), self.is_cuda)

    def index_select(self, axis: int, index: Tensor) -> Tensor:
        assert axis == 0 and self.is_cuda == index.is_cuda, "on one device"
        return Tensor(self.values[index.values], self.is_cuda)

    def index_copy_(self, axis: int, index: Tensor, rows: Tensor) -> None:
        assert axis == 0 and self.is_cuda and index.is_cuda and rows.is_cuda, "on one device"
        assert rows.values.dtype == self.values.dtype
        self.values[index.values] = rows.values

    def all(self) -> Any:
        return self.values.all()

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


def from_numpy(values: NDArray[Any]) -> Tensor:
    return Tensor(values)


def as_tensor(memory: Any, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(array_over(memory), is_cuda=True)


def isfinite(tensor: Tensor) -> Tensor:
    return Tensor(np.isfinite(tensor.values))


class cuda:
    available = True

    @staticmethod
    def synchronize() -> None:
        pass

    @staticmethod
    def current_stream() -> Any:
        return SimpleNamespace(synchronize=lambda: None)

    @classmethod
    def is_available(cls) -> bool:
        return cls.available
