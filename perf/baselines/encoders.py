"""Vision encode for the baselines: in the token loop's own process, or in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.workers import SupervisedWorker, WorkerSpec

BATCH = 8  # pictures in one call of the tower


class Encoder(Protocol):
    """Tiles uint8 [n, side, side, 3] to visual tokens float16 [n, tokens, hidden]."""

    def encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        """Encode, and wait for it."""

    def in_background(self) -> ThreadPoolExecutor | None:
        """The thread to call it from; None: the token loop's own."""


def vision_config(artifacts: Path, threads: int) -> dict[str, Any]:
    """The configuration of the product's own VisionWorker."""
    pool = load_built_deployment(artifacts).pools.vision
    return {
        "folder": str(artifacts / "vision"),
        "image_size": load_checkpoint(artifacts).image_size,
        "batch_size": BATCH,
        "precision": pool.precision,
        "threads": threads,
    }


class InlineEncoder:
    """Encodes on the calling thread."""

    def __init__(self, artifacts: Path, threads: int) -> None:
        from python_backends.engines.vision_openvino import VisionWorker  # noqa: PLC0415  (OpenVINO loads for seconds)

        self._worker = VisionWorker(vision_config(artifacts, threads))
        self._tokens = load_checkpoint(artifacts).tokens_per_tile

    def encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        """Encode, and wait for it."""
        (rows,), _ = self._worker.handle("encode", [tiles], {})
        return rows.reshape(len(tiles), self._tokens, -1)

    def in_background(self) -> None:
        """In the loop."""


class ProcessEncoder:
    """Encodes in a worker process with its own cores and nice level; `nice` 0 is equal priority."""

    def __init__(self, artifacts: Path, threads: int, cores: Sequence[int], nice: int) -> None:
        checkpoint = load_checkpoint(artifacts)
        self._tokens = checkpoint.tokens_per_tile
        self._batch = BATCH
        side = checkpoint.image_size
        self._worker = SupervisedWorker(
            WorkerSpec(
                name="baseline_encoder",
                target="python_backends.engines.vision_openvino:VisionWorker",
                config=vision_config(artifacts, threads),
                slot_bytes=self._batch * (side * side * 3 + self._tokens * checkpoint.hidden_size * 2) + 4096,
            )
        )
        self._worker.start()
        assert self._worker.pid is not None
        _place(self._worker.pid, cores, nice)

    def encode(self, tiles: NDArray[np.uint8]) -> NDArray[np.float16]:
        """Encode, and wait for it."""
        batches = [
            self._worker.call("encode", [tiles[first : first + self._batch]]).arrays[0]
            for first in range(0, len(tiles), self._batch)
        ]
        rows: NDArray[np.float16] = np.concatenate(batches)
        return rows.reshape(len(tiles), self._tokens, -1)

    def in_background(self) -> ThreadPoolExecutor:
        """One thread that feeds it, first come first served."""
        return ThreadPoolExecutor(1, thread_name_prefix="encode")


def _place(pid: int, cores: Sequence[int], nice: int) -> None:
    """On Linux affinity and nice level belong to threads."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)
        os.setpriority(os.PRIO_PROCESS, int(thread), nice)
