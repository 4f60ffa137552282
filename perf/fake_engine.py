"""A fake LLM engine: no model, only the traffic of one.

It stands in for a GPU engine that is faster than anything this machine has: every step brings one token for each
running sequence, at once or at the pace of FAKE_ENGINE_STEP_MS. A token tells its position in the context, so that a
sequence which goes on elsewhere must go on with the same tokens.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engines.protocol import Finish, StepReport, submissions_from_tensors

STEP_MS_VARIABLE = "FAKE_ENGINE_STEP_MS"
FIRST_TOKEN_ID, TOKEN_IDS = 1000, 1000  # plain words in any tokenizer of this size

_REAL = "TEXT[deployment.pools.text.device]"  # what the model asks its worker to run
_FAKE = "perf.fake_engine:FakeEngine"

Arrays = list[NDArray[Any]]


@dataclass(slots=True)
class _Running:
    position: int  # in the context: prompt and answer
    end: int


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
            for s in submissions_from_tensors(dict(zip(meta["names"], arrays, strict=True)), meta["sampling"]):
                self.add(s.request_id, s.sampling.max_tokens or 1, len(s.tokens))
            return [], {"refused": {}}
        if op == "cancel":
            for request_id in arrays[0].tolist():
                self._running.pop(request_id, None)
        return [], {"running": len(self._running), "kv_usage": 0.0, "kv_bytes": 0}

    def add(self, request_id: int, tokens: int, prompt: int) -> None:
        """Run a sequence of so many tokens after a prompt of so many."""
        self._running[request_id] = _Running(prompt, prompt + tokens)

    def step(self) -> StepReport:
        """One token for every sequence."""
        if self._step_s:
            now = time.monotonic()
            time.sleep(max(0.0, self._next_s - now))
            self._next_s = max(now, self._next_s) + self._step_s
        ids, tokens, finish = [], [], []
        for request_id, sequence in list(self._running.items()):
            ids.append(request_id)
            tokens.append(FIRST_TOKEN_ID + sequence.position % TOKEN_IDS)
            sequence.position += 1
            done = sequence.position == sequence.end
            finish.append(Finish.LENGTH if done else Finish.RUNNING)
            if done:
                del self._running[request_id]
        count = len(ids)
        return StepReport(
            np.array(ids, np.uint64),
            np.ones(count, np.int32),
            np.array(tokens, np.int32),
            np.array(finish, np.uint8),
            np.zeros(2 * count, np.float32),
        )


def copy_with_fake_engine(composed: Path, target: Path) -> Path:
    """A composed deployment again, in the folder `target`, with this engine in the place of the real one."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "artifacts").symlink_to((composed / "artifacts").resolve())
    models = target / "model_repository"
    shutil.copytree(composed / "model_repository", models)
    for model in models.glob("llm_decoder_*/1/model.py"):
        replace_engine(model, _FAKE)
    return target


def replace_engine(model: Path, engine: str) -> None:
    """Have a decoder's model.py run this class (ValueError: it does not choose its engine as it did)."""
    source = model.read_text()
    if _REAL not in source:
        raise ValueError(f"{model} does not name {_REAL}")
    model.write_text(source.replace(_REAL, f'"{engine}"'))
