"""Runs a level and leaves one file a run; what is there already is not run again, so that a stopped bench goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from perf.baselines.arms import MONOLITH, PRODUCT, running
from perf.bench import plan
from perf.bench.meter import Meter
from perf.bench.plan import Level
from perf.bench.store import CALIBRATION_SEED, Store
from perf.load import OK, Run, closed_loop, open_loop, open_target
from perf.workloads import Workload, load_workload, make_workload

_WARM_UP = {"single-text": 4, "single-image": 2}  # requests whose figures nobody sees
_WARM_UP_SEED = 998
_ISOLATED_SEED = 999
Say = Callable[[str], None]
Compose = Callable[[str], Path]  # the composed deployment of an arm; makes it when needed


@dataclass(frozen=True)
class _Task:
    workload: Workload
    path: Path
    concurrency: int  # 0: open loop


def run_level(level: Level, compose: Compose, store: Store, say: Say) -> None:
    """Everything of a level (RuntimeError: an arm does not start)."""
    for index, seed in enumerate(level.seeds):
        for arm in plan.arms_in_order(level, index):
            # drawn one by one: the rates of the workloads follow from the monolith's calibration, which comes first
            tasks = chain(_calibration(level, store, arm, index), _workloads(level, store, arm, seed))
            _run_arm(arm, tasks, compose, store, say)


def _run_arm(arm: str, tasks: Iterable[_Task], compose: Compose, store: Store, say: Say) -> None:
    with ExitStack() as stack:
        urls: Sequence[str] = ()
        for task in tasks:
            if task.path.exists():
                continue
            if not urls:
                urls = stack.enter_context(running(arm, compose(arm), store.folder / "logs"))
                for name, count in _WARM_UP.items():
                    asyncio.run(_drive(plan.fixed_count(name, count, _WARM_UP_SEED), count, urls))
            meter = Meter()
            run = asyncio.run(_drive(task.workload, task.concurrency, urls))
            others_cores, steal_share = meter.read()
            _check(run, task, arm)
            replace(run, others_cores=others_cores, steal_share=steal_share).save(task.path)
            say(f"{task.path.stem}: {len(run.records)} requests in {run.wall_s:.0f} s")


def _check(run: Run, task: _Task, arm: str) -> None:
    """All rates and SLOs follow from the monolith's calibration (RuntimeError: it failed some of it)."""
    failed = [record for record in run.records if record.outcome != OK]
    if failed and arm == MONOLITH and task.concurrency:
        raise RuntimeError(f"{task.path.stem}: {len(failed)} of {len(run.records)} failed: {failed[0].error}")


async def _drive(workload: Workload, concurrency: int, urls: Sequence[str]) -> Run:
    target = open_target(urls)
    payloads = [target.prepare(request) for request in workload.requests]
    try:
        if concurrency:
            return await closed_loop(workload.requests, payloads, target, concurrency)
        return await open_loop(workload.requests, payloads, target)
    finally:
        await target.close()


def _calibration(level: Level, store: Store, arm: str, index: int) -> Iterator[_Task]:
    """How fast it is alone (the monolith, for SLOs), and at the most."""
    if arm == MONOLITH and index == 0:
        for name in plan.KINDS:
            workload = plan.fixed_count(name, level.isolated, _ISOLATED_SEED)
            yield _Task(workload, store.run(f"isolated-{name}", CALIBRATION_SEED, arm), 1)
    if index < (level.repeats if arm in (MONOLITH, PRODUCT) else 1):
        seed = CALIBRATION_SEED + index
        for name, count in level.saturation.items():
            workload = plan.fixed_count(name, count, seed)
            yield _Task(workload, store.run(f"saturation-{name}", seed, arm), plan.SATURATED)


def _workloads(level: Level, store: Store, arm: str, seed: int) -> Iterator[_Task]:
    capacity = store.capacity()
    for name, seconds in level.seconds.items():
        path = store.workload(name, seed)
        if not path.exists():
            load = plan.BURST_LOAD if name == "image-burst" else plan.LOAD
            rate = capacity.rate(name, load)
            make_workload(name, rate=rate, seconds=seconds, seed=seed).save(path)
        yield _Task(load_workload(path), store.run(name, seed, arm), 0)
