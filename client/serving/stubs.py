"""The stub processes of a running tritonserver: which there are, and which of them are dead or hang.

Triton 24.10 does not look: a stub that is gone stays a zombie, and its model is called ready.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field

import psutil

STOPPED_S = 1.5  # a stub that is stopped for so long hangs

_MODEL_FILE = re.compile(r"/([^/]+)/\d+/model\.py$")


@dataclass(frozen=True)
class Loss:
    """A stub that serves no more."""

    model: str
    pid: int
    reason: str

    def end(self) -> None:
        """Kill it, should it only hang: the calls in it end with it."""
        with contextlib.suppress(psutil.Error):
            psutil.Process(self.pid).kill()


@dataclass
class StubWatch:
    """Remembers the stubs it has seen under one process, and finds those that are lost."""

    root: psutil.Process  # an ancestor of tritonserver
    _known: dict[int, str] = field(default_factory=dict)  # pid: model
    _stopped_since: dict[int, float] = field(default_factory=dict)
    _retired: set[int] = field(default_factory=set)  # forgotten, and not gone yet

    def look(self) -> list[Loss]:
        """Learn of new stubs; the ones lost since they were learnt of, each told once."""
        states = self.learn()
        self._retired &= states.keys()
        now = time.monotonic()
        losses = [
            Loss(model, pid, reason)
            for pid, model in self._known.items()
            if (reason := self._lost(pid, states.get(pid), now)) is not None
        ]
        for loss in losses:
            self._forget(loss.pid)
        return losses

    def learn(self) -> dict[int, str]:
        """Learn of new stubs, and tell of no loss yet; the states of all processes by pid."""
        states: dict[int, str] = {}
        for process in self.root.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                states[process.pid] = process.status()
                if self._is_new(process.pid) and states[process.pid] != psutil.STATUS_ZOMBIE:
                    self._learn(process)
        return states

    @property
    def models(self) -> set[str]:
        """Those with stubs."""
        return set(self._known.values())

    def losses_of(self, model: str, reason: str) -> list[Loss]:
        """All stubs of a model, lost for a reason that its processes do not show."""
        return [Loss(model, pid, reason) for pid, name in self._known.items() if name == model]

    def forget(self, model: str) -> None:
        """Its stubs are about to be ended by intent."""
        for pid in [pid for pid, name in self._known.items() if name == model]:
            self._forget(pid)

    def _is_new(self, pid: int) -> bool:
        return pid not in self._known and pid not in self._retired

    def _learn(self, process: psutil.Process) -> None:
        arguments = process.cmdline()
        found = _MODEL_FILE.search(arguments[1]) if len(arguments) > 1 else None
        if found is not None and "stub" in arguments[0]:
            self._known[process.pid] = found[1]

    def _lost(self, pid: int, state: str | None, now: float) -> str | None:
        if state is None or state == psutil.STATUS_ZOMBIE:
            return "died"
        if state not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            self._stopped_since.pop(pid, None)
        elif now - self._stopped_since.setdefault(pid, now) > STOPPED_S:
            return "hangs (it is stopped)"
        return None

    def _forget(self, pid: int) -> None:
        del self._known[pid]
        self._stopped_since.pop(pid, None)
        self._retired.add(pid)
