"""A fake LLM engine: no model, only the traffic of one.

It stands in for a GPU engine that is faster than anything this machine has: every step brings one token for each
running sequence, at once or at the pace of FAKE_ENGINE_STEP_MS.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.protocol import Finish, StepReport, submissions_from_tensors

STEP_MS_VARIABLE = "FAKE_ENGINE_STEP_MS"
FIRST_TOKEN_ID, TOKEN_IDS = 1000, 1000  # plain words in any tokenizer of this size

Arrays = list[NDArray[Any]]


@dataclass(slots=True)
class _Running:
    limit: int
    made: int = 0


class FakeEngine:
    """An engine as `workers.child` runs it, and as the model `direct` steps it in its own process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._step_s = float(os.environ.get(STEP_MS_VARIABLE, "0")) / 1e3
        self._next_s = 0.0
        self._running: dict[int, _Running] = {}

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`submit` and `cancel` as every engine; anything else answers with the figures."""
        if op == "submit":
            for submission in submissions_from_tensors(dict(zip(meta["names"], arrays, strict=True)), meta["sampling"]):
                self.add(submission.request_id, submission.sampling.max_tokens or 1)
            return [], {"refused": {}}
        if op == "cancel":
            for request_id in arrays[0].tolist():
                self._running.pop(request_id, None)
        return [], {"running": len(self._running), "kv_usage": 0.0, "kv_bytes": 0}

    def add(self, request_id: int, tokens: int) -> None:
        """Run a sequence of so many tokens."""
        self._running[request_id] = _Running(tokens)

    def step(self) -> StepReport:
        """One token for every sequence."""
        if self._step_s:
            now = time.monotonic()
            time.sleep(max(0.0, self._next_s - now))
            self._next_s = max(now, self._next_s) + self._step_s
        ids, tokens, finish = [], [], []
        for request_id, sequence in list(self._running.items()):
            ids.append(request_id)
            tokens.append(FIRST_TOKEN_ID + sequence.made % TOKEN_IDS)
            sequence.made += 1
            finish.append(Finish.LENGTH if sequence.made == sequence.limit else Finish.RUNNING)
            if sequence.made == sequence.limit:
                del self._running[request_id]
        count = len(ids)
        return StepReport(
            np.array(ids, np.uint64),
            np.ones(count, np.int32),
            np.array(tokens, np.int32),
            np.array(finish, np.uint8),
            np.zeros(2 * count, np.float32),
        )
