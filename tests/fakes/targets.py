"""Fake worker targets: what a native stage could do to its stub, on request."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]


class FakeStage:
    """Doubles arrays, and misbehaves when asked to."""

    def __init__(self, config: dict[str, Any]) -> None:
        if config.get("refuse_to_load"):
            raise RuntimeError("no such weights")

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        if op == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if op == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if op == "hang":
            time.sleep(3600)
        if op == "raise":
            raise ValueError("bad weather")
        return [array * 2 for array in arrays], {"pid": os.getpid(), "nice": os.nice(0), **meta}


class FakeEngine:
    """Counts down from the submitted number, one step at a time; "deadlock" is answered, and nothing after it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._left = 0
        self._deadlocked = False

    @property
    def busy(self) -> bool:
        if self._deadlocked:
            threading.Event().wait()
        return self._left > 0

    def step(self) -> int:
        self._left -= 1
        return self._left

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        self._deadlocked = op == "deadlock"
        self._left = int(meta.get("count", 0))
        return [np.zeros(0)], {}
