"""Worker targets on a fake GPU: the stages' own code around pages in its memory, over engines for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from python_backends.embeddings.on_gpu import DevicePool
from python_backends.engines import llm_openvino, vision_openvino
from python_backends.engines.vision_on_gpu import VisionOnGpu
from tests.fakes import cuda, torch_cpu

Arrays = list[NDArray[Any]]


class Encoder(VisionOnGpu, vision_openvino.VisionWorker):
    """Its rows are "on the GPU" when OpenVINO has made them."""

    def __init__(self, config: dict[str, Any]) -> None:
        cuda.install(pytest.MonkeyPatch())
        VisionOnGpu.__init__(self, torch_cpu)
        vision_openvino.VisionWorker.__init__(self, config)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        return self.on_gpu(op, arrays, meta, super().handle)

    def parts(self, arrays: Arrays) -> Iterator[Any]:
        tiles, step = np.concatenate(arrays), self._batch_size
        for first in range(0, len(tiles), step):
            rows = self._encode(tiles[first : first + step])
            yield torch_cpu.Tensor(rows.reshape(-1, rows.shape[-1]), is_cuda=True)


class PagesOnly(Encoder):
    """Hands no visual tokens out."""

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        assert op == "encode_into"
        return super().handle(op, arrays, meta)


class Decoder(llm_openvino.LlmEngine):
    """Takes its visual tokens from the GPU; a prompt that has none there fails."""

    def __init__(self, config: dict[str, Any]) -> None:
        cuda.install(pytest.MonkeyPatch())
        super().__init__(config)
        self._pool = _FromGpu()  # type: ignore[assignment]


class _FromGpu:
    """In the place of a PoolReader."""

    def __init__(self) -> None:
        self._pool = DevicePool(torch_cpu)

    def copy(
        self, address: str, pages: NDArray[np.int64], target: NDArray[np.float32], places: NDArray[np.int64]
    ) -> None:
        assert self._pool.is_on_gpu(address)
        target[places] = self._pool.take(address, pages, len(places)).values
