"""Vision runtime: TensorRT. Runs in a worker process (`workers.child`) that sees one GPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.tensorrt_encoder import TensorRtEncoder
from python_backends.workers.targets import require, require_cuda

Arrays = list[NDArray[Any]]

MODEL_FILE = "model.plan"
REMEDY = "run in the image of containers/Dockerfile, which has version 10.14"


class VisionWorker:
    """Encodes tiles in batches.

    config: folder (artifacts of the vision tower), graph_batches (sizes to run as CUDA graphs). Raises MissingRuntime
    for what is not there: PyTorch, a GPU, TensorRT, a plan that loads.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        torch = require("torch", "PyTorch", REMEDY)
        require_cuda(torch)
        tensorrt = require("tensorrt", "TensorRT", REMEDY)
        plan = Path(config["folder"]) / MODEL_FILE
        self._encoder = TensorRtEncoder(plan, config["graph_batches"], torch, tensorrt)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`encode`: each array is tiles uint8 [n, H, W, 3]; gives float16 [n x T, hidden] for each.

        meta["encode_ms"] is the time of the whole call.
        """
        if op != "encode":
            raise ValueError(f"unknown operation '{op}'")
        started = time.perf_counter()
        tiles = np.concatenate(arrays)
        step = self._encoder.largest
        batches = [
            np.from_dlpack(self._encoder.encode(tiles[first : first + step]).cpu())
            for first in range(0, len(tiles), step)
        ]
        tokens = np.concatenate(batches)  # [tiles, T, hidden]
        ends = np.cumsum([len(array) for array in arrays])
        outputs = [part.reshape(-1, part.shape[-1]) for part in np.split(tokens, ends[:-1])]
        return outputs, {"encode_ms": (time.perf_counter() - started) * 1000}
