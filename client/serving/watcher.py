"""Mends a running server: reloads a model whose stub is lost, restarts everything when that is not enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.stubs import Loss

log = logging.getLogger(__name__)

# Lost with the router's stub are the answers it owed, which only closed connections end, and the replicas that wait
# for it to listen (seen on Triton 24.10): nothing less than a restart helps.
_NEEDS_RESTART = "vlm"
_ONE_ENSEMBLE = ("image_decode", "vision_encoder")  # image_embedding comes and goes with each of them
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
        """Have the models of these stubs back, side by side (ServeError when a restart does not help either)."""
        for loss in losses:
            log.warning("the stub %d of model %s %s", loss.pid, loss.model, loss.reason)
        models = sorted({loss.model for loss in losses})
        pauses_s = {model: self._pause_s(model) for model in models}
        try:
            if _NEEDS_RESTART in models:
                time.sleep(max(pauses_s.values()))
                raise ServeError(f"the stub of model {_NEEDS_RESTART} is lost")
            self._reload_all(_one_after_another(models), pauses_s)
        except ServeError as error:
            log.warning("restarting tritonserver: %s", error)
            self.restart()

    def _reload_all(self, groups: Sequence[Sequence[str]], pauses_s: Mapping[str, float]) -> None:
        def reload(group: Sequence[str]) -> None:
            for model in group:
                time.sleep(pauses_s[model])
                begin = time.monotonic()
                self.control.reload(model, self.load_s)
                log.warning("model %s is back after %.1f s", model, time.monotonic() - begin)

        pool = ThreadPoolExecutor(len(groups), "reload")
        try:
            for reloading in [pool.submit(reload, group) for group in groups]:
                reloading.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a signal must not wait for a model to load

    def _pause_s(self, model: str) -> float:
        """None at first, longer and longer for a model that is lost again and again."""
        now = time.monotonic()
        last, times = self._mended.get(model, (float("-inf"), 0))
        times = times + 1 if now - last < _CALM_S else 0
        self._mended[model] = (now, times)
        return min(_MOST_PAUSE_S, 2.0**times - 1)


def _one_after_another(models: Sequence[str]) -> list[list[str]]:
    """Groups that are independent of each other."""
    together = [model for model in models if model in _ONE_ENSEMBLE]
    alone = [[model] for model in models if model not in _ONE_ENSEMBLE]
    return [together, *alone] if together else alone
