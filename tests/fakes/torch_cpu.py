"""A fake `torch` for machines without PyTorch or a GPU: what the TensorRT-LLM adapter uses of it, over NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

float16, float32, bfloat16 = np.float16, np.float32, np.float32  # NumPy has no bfloat16


class Tensor:
    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.values.astype(dtype))

    def split(self, counts: Sequence[int]) -> list[Tensor]:
        return [Tensor(part) for part in np.split(self.values, np.cumsum(counts)[:-1])]

    def clone(self) -> Tensor:
        return Tensor(self.values.copy())

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


def from_numpy(values: NDArray[Any]) -> Tensor:
    return Tensor(values)


class cuda:
    available = True

    @classmethod
    def is_available(cls) -> bool:
        return cls.available
