"""Runs a level and leaves one file a run; what is there already is not run again, so that a stopped bench goes on.

A server that dies in a run is no slow server: that run is not kept, and its arm is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from client.serving.errors import ServeError
from perf.baselines.arms import MONOLITH, PRODUCT, complaint, running
from perf.bench import plan
from perf.bench.meter import Meter
from perf.bench.plan import Level
from perf.bench.store import CALIBRATION_SEED, Store
from perf.load import OK, Run, closed_loop, open_loop, open_target
from perf.workloads import Workload, load_workload, make_workload
from python_backends.deployment import DeploymentError

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


def run_level(level: Level, compose: Compose, store: Store, commit: str, say: Say) -> dict[str, str]:
    """Everything of a level; gives the arms that were left out, with the reason.

    `commit`: of the code that runs.

    Raises:
        RuntimeError: monolith or product, without which there is no report, does not start, or died.
    """
    left_out: dict[str, str] = {}
    for index, seed in enumerate(level.seeds):
        for arm in plan.arms_in_order(level, index):
            if arm in left_out:
                continue
            # drawn one by one: the rates of the workloads follow from the monolith's calibration, which comes first
            tasks = chain(_calibration(level, store, arm, index), _workloads(level, store, arm, seed))
            try:
                _run_arm(arm, tasks, compose, store, commit=commit, say=say)
            except (RuntimeError, ServeError, DeploymentError) as error:
                if arm in (MONOLITH, PRODUCT):
                    raise RuntimeError(f"{arm}: {error}") from error
                left_out[arm] = str(error)
                say(f"{arm} is left out: {error}")
    return left_out


def _run_arm(arm: str, tasks: Iterable[_Task], compose: Compose, store: Store, *, commit: str, say: Say) -> None:
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
            _check(run, task, arm, urls)
            replace(run, others_cores=others_cores, steal_share=steal_share, commit=commit).save(task.path)
            say(f"{task.path.stem}: {len(run.records)} requests in {run.wall_s:.0f} s")


def _check(run: Run, task: _Task, arm: str, urls: Sequence[str]) -> None:
    """Whether a run counts (RuntimeError: it doesn't).

    Failed requests are a figure like others, unless the server is gone. The monolith must not fail any of its
    calibration, from which all rates and SLOs follow.
    """
    failed = [record for record in run.records if record.outcome != OK]
    if not failed:
        return
    what = f"{task.path.stem}: {len(failed)} of {len(run.records)} failed: {failed[0].error}"
    if arm == MONOLITH and task.concurrency:
        raise RuntimeError(what)
    if gone := complaint(urls):
        raise RuntimeError(f"{what}; and now it answers nobody ({gone})")


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
