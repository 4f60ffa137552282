"""Runs a level and leaves one file a run; what is there already is not run again, so that a stopped bench goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from perf.baselines.arms import MONOLITH, running
from perf.bench import plan
from perf.bench.plan import Level
from perf.load import GrpcTarget, Run, closed_loop, load_run, open_loop
from perf.workloads import Workload, load_workload, make_workload

_CALIBRATION_SEED = 1000
Say = Callable[[str], None]


@dataclass(frozen=True)
class Store:
    """Where workloads and runs lie."""

    folder: Path

    def run(self, name: str, seed: int, arm: str) -> Path:
        """The records of one run."""
        return self.folder / "runs" / f"{name}.{seed}.{arm}.jsonl"

    def workload(self, name: str, seed: int) -> Path:
        """What was asked in it."""
        return self.folder / "workloads" / f"{name}.{seed}.jsonl"

    def capacity(self) -> plan.Capacity:
        """Of the monolith, once it was saturated."""
        runs = [load_run(self.run(f"saturation-{kind}", _CALIBRATION_SEED, MONOLITH)) for kind in plan.SATURATION]
        return plan.capacity(*runs)


@dataclass(frozen=True)
class _Task:
    workload: Workload
    path: Path
    concurrency: int  # 0: open loop


def run_level(level: Level, output: Path, store: Store, say: Say) -> None:
    """Everything of a level on the composed deployment in `output` (RuntimeError: an arm does not start)."""
    for index, seed in enumerate(level.seeds):
        for arm in plan.arms_in_order(level, index):
            calibration = _calibration(level, store, arm) if index == 0 else ()
            # drawn one by one: the rates of the workloads follow from the monolith's calibration, which comes first
            _run_arm(arm, chain(calibration, _workloads(level, store, seed, arm)), output, store, say)


def _run_arm(arm: str, tasks: Iterable[_Task], output: Path, store: Store, say: Say) -> None:
    with ExitStack() as stack:
        urls: Sequence[str] = ()
        for task in tasks:
            if task.path.exists():
                continue
            urls = urls or stack.enter_context(running(arm, output, store.folder / "logs"))
            run = asyncio.run(_drive(task, urls))
            run.save(task.path)
            say(f"{task.path.stem}: {len(run.records)} requests in {run.wall_s:.0f} s")


async def _drive(task: _Task, urls: Sequence[str]) -> Run:
    requests = task.workload.requests
    target = GrpcTarget(urls)
    payloads = [target.prepare(request) for request in requests]
    try:
        if task.concurrency:
            return await closed_loop(requests, payloads, target, task.concurrency)
        return await open_loop(requests, payloads, target)
    finally:
        await target.close()


def _calibration(level: Level, store: Store, arm: str) -> Iterator[_Task]:
    """How fast it is alone (the monolith, for SLOs), and at the most."""
    if arm == MONOLITH:
        for name in plan.ISOLATED:
            workload = plan.fixed_count(name, level.isolated, _CALIBRATION_SEED - 1)
            yield _Task(workload, store.run(f"isolated-{name}", _CALIBRATION_SEED, arm), 1)
    for name in plan.SATURATION:
        workload = plan.fixed_count(name, level.saturation, _CALIBRATION_SEED)
        yield _Task(workload, store.run(f"saturation-{name}", _CALIBRATION_SEED, arm), plan.SATURATED)


def _workloads(level: Level, store: Store, seed: int, arm: str) -> Iterator[_Task]:
    capacity = store.capacity()
    for name in level.workloads:
        path = store.workload(name, seed)
        if not path.exists():
            load = plan.BURST_LOAD if name == "image-burst" else plan.LOAD
            rate = capacity.rate(name, load)
            make_workload(name, rate=rate, seconds=level.seconds, seed=seed).save(path)
        yield _Task(load_workload(path), store.run(name, seed, arm), 0)
