"""Stubs that live and answer nobody: found by asking them, once nothing else shows that they work.

A deadlocked stub looks like one at work. So a model that has got nothing done for a while is sent a health inference,
which its stub answers on the way of all others, and it is called hung only when it has neither answered that nor got
anything else done for longer than its stage's own time limits allow.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import urllib3

from python_backends.deployment import Deployment

_LOOK_S = 1.0  # between two looks at the statistics
_CALL_S = 2.0
_CLOSE = {"Connection": "close"}  # a kept-alive connection would hold tritonserver's exit back
_PROBE: dict[str, Any] = {"tvlm_probe": True}  # to stubs: `triton_io.is_probe`


@dataclass
class Pulse:
    """Signs of life of one model.

    Time is what was watched: when the whole machine stood still, nobody was silent meanwhile.
    """

    limit_s: float  # without any sign
    _done: int = -1
    _quiet_s: float = 0.0
    _asked_s: float | None = None

    def look(self, done: int, answered: bool, elapsed_s: float) -> None:
        """`done`: requests that ended so far; `answered`: the health inference was."""
        self._quiet_s += min(elapsed_s, 2 * _LOOK_S)
        if self._asked_s is not None:
            self._asked_s += min(elapsed_s, 2 * _LOOK_S)
        if answered or done != self._done:
            self._done, self._quiet_s = done, 0.0
            self._asked_s = None if answered or self._asked_s is None else 0.0

    @property
    def is_doubtful(self) -> bool:
        """Whether to ask it now."""
        return self._asked_s is None and self._quiet_s >= self.limit_s / 4

    def asked(self) -> None:
        """It was."""
        self._asked_s = 0.0

    @property
    def hangs(self) -> bool:
        """No sign of life for all of the limit, though asked."""
        return self._asked_s is not None and self._asked_s >= self.limit_s


class _Probe:
    """One health inference, in a thread of its own; whatever comes back, be it an error, is a sign of life."""

    def __init__(self, http: str, model: str, timeout_s: float) -> None:
        self.answered = False
        self._url, self._body = f"{http}/v2/models/{model}", _body(model)
        self._timeout_s = timeout_s
        threading.Thread(target=self._run, name=f"probe-{model}", daemon=True).start()

    def _run(self) -> None:
        action = "infer" if "inputs" in self._body else "generate"
        try:
            urllib3.request(
                "POST", f"{self._url}/{action}", json=self._body, headers=_CLOSE, timeout=self._timeout_s, retries=False
            )
        except urllib3.exceptions.TimeoutError:
            return
        except urllib3.exceptions.HTTPError:
            pass  # tritonserver's trouble, not the stub's
        self.answered = True


def _body(model: str) -> dict[str, Any]:
    """The least that Triton hands to the stub; vlm and decoders are asked through `generate`."""
    if model == "image_decode":
        return {"parameters": _PROBE, "inputs": [_tensor("image", [1, 1], "BYTES", [""])]}
    if model == "vision_encoder":
        tiles = _tensor("tiles", [1, 1, 1, 1, 3], "UINT8", [0, 0, 0])
        return {"parameters": _PROBE, "inputs": [tiles, _tensor("picture_size", [1, 2], "INT32", [1, 1])]}
    return {"op": "ping"} if model.startswith("llm_decoder_") else {"text_input": "", **_PROBE}


def _tensor(name: str, shape: list[int], datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


@dataclass
class Probes:
    """Watches the models of one tritonserver."""

    http: str
    limit_s: Callable[[str], float]  # by model
    _pulses: dict[str, Pulse] = field(default_factory=dict)
    _probes: dict[str, _Probe] = field(default_factory=dict)
    _looked_s: float = field(default_factory=time.monotonic)

    def look(self, models: Collection[str]) -> dict[str, str]:
        """Those that hang, each with the reason."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return {}
        elapsed_s, self._looked_s = now - self._looked_s, now
        done = self._done()
        hung = {}
        for model in models:
            if model not in done:
                continue
            pulse = self._pulses.setdefault(model, Pulse(self.limit_s(model)))
            answered = model in self._probes and self._probes[model].answered
            pulse.look(done[model], answered, elapsed_s)
            if answered:
                del self._probes[model]
            if pulse.is_doubtful:
                self._probes[model] = _Probe(self.http, model, 2 * pulse.limit_s)
                pulse.asked()
            elif pulse.hangs:
                hung[model] = f"hangs (no answer, and nothing done, for {pulse.limit_s:g} s)"
        return hung

    def forget(self, model: str) -> None:
        """It is about to be loaded again."""
        self._pulses.pop(model, None)
        self._probes.pop(model, None)

    def _done(self) -> dict[str, int]:
        """Requests of each model that ended, well or not; nothing when tritonserver does not say."""
        try:
            answer = urllib3.request(
                "GET", f"{self.http}/v2/models/stats", headers=_CLOSE, timeout=_CALL_S, retries=False
            )
            statistics = json.loads(answer.data)["model_stats"]
        except (urllib3.exceptions.HTTPError, ValueError, KeyError):
            return {}
        return {
            model["name"]: sum(model["inference_stats"][kind]["count"] for kind in ("success", "fail"))
            for model in statistics
        }


def hang_limit_s(deployment: Deployment, model: str) -> float:
    """How long a model may show no sign of life: its stage's own time limit, and serving.hang_timeout_s."""
    pools = deployment.pools
    own_ms = {"vlm": 0, "image_decode": pools.preprocess.timeout_ms, "vision_encoder": pools.vision.timeout_ms}
    return own_ms.get(model, pools.text.stall_timeout_ms) / 1000 + deployment.serving.hang_timeout_s
