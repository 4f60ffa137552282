"""Vision runtime: TensorRT. Runs in a worker process (`workers.child`) that sees one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.tensorrt_encoder import TensorRtEncoder
from python_backends.engines.vision_on_gpu import Arrays, VisionOnGpu
from python_backends.engines.vision_worker import BatchedVision
from python_backends.workers.targets import require, require_cuda

MODEL_FILE = "model.plan"
REMEDY = "run in the image of containers/Dockerfile, which has version 10.14"


def import_runtime() -> tuple[ModuleType, ModuleType]:
    """PyTorch and TensorRT, where there is a GPU (MissingRuntime)."""
    torch = require("torch", "PyTorch", REMEDY)
    require_cuda(torch)
    return torch, require("tensorrt", "TensorRT", REMEDY)


class VisionWorker(VisionOnGpu, BatchedVision):
    """Encodes tiles in batches.

    config: folder (artifacts of the vision tower), graph_batches (sizes to run as CUDA graphs). Raises MissingRuntime
    for what is not there: PyTorch, a GPU, TensorRT, a plan that loads.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        torch, tensorrt = import_runtime()
        super().__init__(torch)
        plan = Path(config["folder"]) / MODEL_FILE
        self._encoder = TensorRtEncoder(plan, config["graph_batches"], torch, tensorrt)
        self._batch_size = self._encoder.largest

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`encode` (see BatchedVision) or `encode_into` (see VisionOnGpu)."""
        return self.on_gpu(op, arrays, meta, super().handle)

    def parts(self, arrays: Arrays) -> Iterator[Any]:
        """See VisionOnGpu."""
        tiles, step = np.concatenate(arrays), self._batch_size
        for first in range(0, len(tiles), step):
            tokens = self._encoder.encode(tiles[first : first + step])
            yield tokens.reshape(-1, tokens.shape[-1])

    def _encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        return np.from_dlpack(self._encoder.encode(tiles).cpu())
