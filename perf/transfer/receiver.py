"""The decoder worker of this measurement: puts visual tokens in their places as an engine does, and runs no model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.region import PoolReader
from python_backends.engines.protocol import VISUAL_TOKEN, submissions_from_tensors

Arrays = list[NDArray[Any]]

HIDDEN_OF = {64: 576, 196: 2560, 576: 4096}  # demo; LLaVA with SigLIP-B and a 3B LLM; LLaVA-1.5-7B


class Receiver:
    """A target of `workers.child`."""

    busy = False

    def __init__(self, config: dict[str, Any]) -> None:
        self._pool = PoolReader()

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`submit`: float32 rows of the prompts are made and forgotten."""
        tensors = dict(zip(meta["names"], arrays, strict=True))
        for submission in submissions_from_tensors(tensors, meta["sampling"], "".join(meta.get("pool", []))):
            places = np.flatnonzero(submission.tokens == VISUAL_TOKEN)
            rows = np.zeros((len(submission.tokens), HIDDEN_OF[len(submission.tokens)]), np.float32)
            submission.visuals.copy_to(rows, places, self._pool)
        return [], {"refused": {}}

    def step(self) -> None:
        """Nothing to do."""
