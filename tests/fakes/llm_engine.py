"""A fake LLM engine for the decoder channel: emits the alphabet, at once or at a set pace."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.protocol import EngineLoad, Finish, StepReport, submissions_from_tensors

Arrays = list[NDArray[Any]]


@dataclass
class _Running:
    made: int
    limit: int


class FakeLlm:
    """Every running sequence gets one letter a step, up to its max_tokens."""

    step_s = 0.005

    def __init__(self, config: dict[str, Any]) -> None:
        self._running: dict[int, _Running] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        if op == "submit":
            for submission in submissions_from_tensors(dict(zip(meta["names"], arrays, strict=True)), meta["sampling"]):
                self._running[submission.request_id] = _Running(0, submission.sampling.max_tokens or 1)
            return [], {"refused": {}}
        elif op == "cancel":
            for request_id in arrays[0].tolist():
                self._running.pop(request_id, None)
        return [], {"running": len(self._running)}

    def step(self) -> StepReport:
        time.sleep(self.step_s)
        ids, tokens, finish = [], [], []
        for request_id, sequence in list(self._running.items()):
            ids.append(request_id)
            tokens.append(ord("a") + sequence.made % 26)
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
            EngineLoad(kv_usage=0.5).array(),
        )
