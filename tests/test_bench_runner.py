"""A level from begin to end on scripted servers: stopped and gone on with, arms that die and that don't start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.serving.errors import ServeError
from client.types import VlmError
from perf.bench import runner
from perf.bench.plan import LEVELS, Level
from perf.bench.runner import run_level
from perf.bench.store import Store
from perf.load import Chunk, load_run
from perf.workloads import Request

LEVEL = replace(
    LEVELS["quick"],
    arms=("monolith", "split-nice", "product"),
    seconds={"image-burst": 0.3},
    isolated=1,
    saturation={"single-text": 4, "single-image": 4},
)


class Machine:
    """Where arms run; `dies` after so many answers, `missing` does not start."""

    def __init__(self, dies: dict[str, int] | None = None, missing: str = "") -> None:
        self.started: list[str] = []
        self.answers: dict[str, int] = {}
        self.said: list[str] = []
        self._dies, self._missing = dies or {}, missing

    @contextmanager
    def running(self, arm: str, _output: Path, _logs: Path) -> Iterator[Sequence[str]]:
        if arm == self._missing:
            raise ServeError(f"{arm} is not installed")  # as the product's own start does
        self.started.append(arm)
        yield [arm]

    def complaint(self, urls: Sequence[str]) -> str:
        return "connection refused" if self.is_dead(urls[0]) else ""

    def is_dead(self, arm: str) -> bool:
        return self.answers.get(arm, 0) >= self._dies.get(arm, 10**9)

    def open_target(self, urls: Sequence[str]) -> ScriptedTarget:
        return ScriptedTarget(self, urls[0])

    def run(self, store: Store, level: Level = LEVEL) -> dict[str, str]:
        return run_level(level, Path, store, "abc123", self.said.append)


class ScriptedTarget:
    """An arm's server."""

    def __init__(self, machine: Machine, arm: str) -> None:
        self._machine, self._arm = machine, arm

    def prepare(self, request: Request) -> Request:
        return request

    async def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
        if self._machine.is_dead(self._arm):
            raise VlmError("UNAVAILABLE", "connection refused")
        self._machine.answers[self._arm] = self._machine.answers.get(self._arm, 0) + 1
        yield Chunk("a")
        yield Chunk("b", 7, payload.answer_tokens)

    async def close(self) -> None:
        pass


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def on(machine: Machine) -> Machine:
        for name in ("running", "complaint", "open_target"):
            monkeypatch.setattr(runner, name, getattr(machine, name))
        return machine

    monkeypatch.setattr("perf.bench.plan.Capacity.rate", lambda *_: 40.0)  # scripted servers are too fast for a bench
    yield on


def test_every_run_is_kept_with_its_commit_and_none_is_made_twice(put: Any, tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert put(Machine()).run(store) == {}
    for arm in LEVEL.arms:
        run = load_run(store.run("image-burst", 1, arm))
        assert run.records
        assert run.commit == "abc123"
    store.run("image-burst", 1, "split-nice").unlink()  # as if it had been stopped before
    again = put(Machine())
    assert again.run(store) == {}
    assert again.started == ["split-nice"]
    assert store.run("image-burst", 1, "split-nice").exists()


def test_an_arm_that_dies_or_does_not_start_is_left_out_and_the_others_run(put: Any, tmp_path: Path) -> None:
    dying = put(Machine(dies={"split-nice": 12}))
    store = Store(tmp_path / "dying")
    (reason,) = dying.run(store).values()
    assert "answers nobody" in reason
    assert store.run("image-burst", 1, "product").exists()
    assert not store.run("image-burst", 1, "split-nice").exists()
    missing = put(Machine(missing="split-nice"))
    assert missing.run(Store(tmp_path / "missing")) == {"split-nice": "split-nice is not installed"}
    assert any("left out" in line for line in missing.said)


@pytest.mark.parametrize("arm", ["monolith", "product"])
def test_there_is_no_report_without_monolith_and_product(put: Any, tmp_path: Path, arm: str) -> None:
    with pytest.raises(RuntimeError, match="failed: connection refused"):
        put(Machine(dies={arm: 9})).run(Store(tmp_path))
