"""Mends a running server: reloads a model whose stub is lost, restarts everything when that is not enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.stubs import Loss

log = logging.getLogger(__name__)

# Lost with the router's stub are the answers it owed, which only closed connections end, and the replicas that wait
# for it to listen (seen on Triton 24.10): nothing less than a restart helps.
_NEEDS_RESTART = "vlm"
_CALM_S = 60.0  # a model that lived so long since it was mended is mended at once again
_MOST_PAUSE_S = 30.0


@dataclass
class Watcher:
    """What to do about losses. `restart` blocks until the server answers again."""

    control: RepositoryControl
    restart: Callable[[], None]
    load_s: float
    _mended: dict[str, tuple[float, int]] = field(default_factory=dict)  # model: when, and how often in a row

    def mend(self, losses: Sequence[Loss]) -> None:
        """Have the models of these stubs back (ServeError when a restart does not help either)."""
        models = sorted({loss.model for loss in losses})
        for loss in losses:
            log.warning("the stub %d of model %s %s", loss.pid, loss.model, loss.reason)
        time.sleep(max(self._pause_s(model) for model in models))
        try:
            if _NEEDS_RESTART in models:
                raise ServeError(f"the stub of model {_NEEDS_RESTART} is lost")
            for model in models:
                begin = time.monotonic()
                self.control.reload(model, self.load_s)
                log.warning("model %s is back after %.1f s", model, time.monotonic() - begin)
        except ServeError as error:
            log.warning("restarting tritonserver: %s", error)
            self.restart()

    def _pause_s(self, model: str) -> float:
        """None at first, longer and longer for a model that is lost again and again."""
        now = time.monotonic()
        last, times = self._mended.get(model, (float("-inf"), 0))
        times = times + 1 if now - last < _CALM_S else 0
        self._mended[model] = (now, times)
        return min(_MOST_PAUSE_S, 2.0**times - 1)
