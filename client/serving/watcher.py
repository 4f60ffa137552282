"""Mends a running server: reloads models whose stubs are lost, restarts everything when that is not enough."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.stubs import Loss

log = logging.getLogger(__name__)

# Lost with the router's stub are the answers it owed, which only closed connections end, and the replicas that wait
# for it to listen (seen on Triton 24.10): nothing less than a restart helps.
_NEEDS_RESTART = "vlm"
_SERVER = "tritonserver"  # in place of a model
# Models are loaded side by side, but for these: the ensemble that holds both comes and goes with each of them.
_ENSEMBLES = {"image_decode": "image_embedding", "vision_encoder": "image_embedding"}
_RESTARTS = 6  # in a row, before the server is given up: what lost a stage may go on while it starts
_CALM_S = 60.0  # a model that lived so long since it was mended is mended at once again
_MOST_PAUSE_S = 30.0


@dataclass
class Watcher:
    """What to do about losses. `restart` blocks until the server answers again."""

    control: RepositoryControl
    restart: Callable[[], None]
    load_s: float
    _mended: dict[str, tuple[float, int]] = field(default_factory=dict)  # model: when, and how often in a row
    _reloads: dict[str, Future[None]] = field(default_factory=dict)  # by model
    _lost_again: set[str] = field(default_factory=set)  # while they were loaded
    _lines: dict[str, ThreadPoolExecutor] = field(default_factory=dict)  # what is in one waits for what is before it
    _given_up: threading.Event = field(default_factory=threading.Event)

    @property
    def is_mending(self) -> bool:
        """Whether a model is being loaded."""
        return bool(self._reloads)

    def mend(self, losses: Sequence[Loss]) -> None:
        """Begin to have the models of these stubs back; `check` sees to the end of it.

        Raises:
            ServeError: the server had to be restarted, and that failed too.
        """
        for loss in losses:
            log.warning("the stub %d of model %s %s", loss.pid, loss.model, loss.reason)
        models = sorted({loss.model for loss in losses})
        if _NEEDS_RESTART in models:
            time.sleep(self._pause_s(_NEEDS_RESTART))
            self._restart(f"the stub of model {_NEEDS_RESTART} is lost")
            return
        for model in models:
            if model in self._reloads:
                self._lost_again.add(model)
            else:
                self._begin(model)

    def revive(self, end: ServeError) -> None:
        """Start a tritonserver again that has ended by itself, as 24.10 does at some losses of a stub.

        Raises:
            ServeError: `end` itself when this goes on, or what came of the last try to start it.
        """
        pause_s = self._pause_s(_SERVER)
        if self._mended[_SERVER][1] >= _RESTARTS:
            raise end
        time.sleep(pause_s)
        self._restart(str(end))

    def check(self) -> None:
        """Look after the reloads that were begun (ServeError as for `mend`)."""
        for model, reload in list(self._reloads.items()):
            if not reload.done():
                continue
            del self._reloads[model]
            try:
                reload.result()
            except ServeError as error:
                self._restart(str(error))
                return
            if model in self._lost_again:
                self._lost_again.discard(model)
                self._begin(model)

    def close(self) -> None:
        """Give up what has not begun; a load that runs ends with the server."""
        self._given_up.set()
        for line in self._lines.values():
            line.shutdown(wait=False, cancel_futures=True)

    def _begin(self, model: str) -> None:
        name = _ENSEMBLES.get(model, model)
        line = self._lines.get(name) or self._lines.setdefault(name, ThreadPoolExecutor(1, f"reload-{name}"))
        self._reloads[model] = line.submit(self._reload, model, self._pause_s(model), self._given_up)

    def _reload(self, model: str, pause_s: float, given_up: threading.Event) -> None:
        if given_up.wait(pause_s):
            return
        begin = time.monotonic()
        self.control.reload(model, self.load_s)
        log.warning("model %s is back after %.1f s", model, time.monotonic() - begin)

    def _restart(self, reason: str) -> None:
        log.warning("starting tritonserver again: %s", reason)
        self.close()
        self._reloads, self._lost_again, self._lines, self._given_up = {}, set(), {}, threading.Event()
        self._start_again()

    def _start_again(self) -> None:
        """A stage may be lost once more while the server starts: that is no reason to give up yet."""
        for attempt in range(1, _RESTARTS + 1):
            try:
                self.restart()
                return
            except ServeError as error:
                if attempt == _RESTARTS:
                    raise
                log.warning("tritonserver did not start (attempt %d of %d): %s", attempt, _RESTARTS, error)

    def _pause_s(self, model: str) -> float:
        """None at first, longer and longer for a model that is lost again and again."""
        now = time.monotonic()
        last, times = self._mended.get(model, (float("-inf"), 0))
        times = times + 1 if now - last < _CALM_S else 0
        self._mended[model] = (now, times)
        return min(_MOST_PAUSE_S, 2.0**times - 1)
