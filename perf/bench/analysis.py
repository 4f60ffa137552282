"""From the records of a level to the figures of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf.baselines.arms import PRODUCT
from perf.bench import plan
from perf.bench.plan import Level
from perf.bench.ratios import IMAGE_TOKENS, TEXT_TOKENS, Ratio, compare, saturated, ttft_s
from perf.bench.slo import Slo, isolated_slo
from perf.bench.store import Store
from perf.bench.targets import Target, targets
from perf.load import OK, Run, answered, load_run
from perf.statistics import highest_quantile, quantile
from perf.workloads import MODALITIES, load_workload


@dataclass(frozen=True)
class Cell:
    """One class of one arm in one workload; latencies in ms, `tail` is the quantile that the sample bears."""

    arm: str
    modality: str
    count: int
    failed: int
    tail: float
    ttft_p50: float
    ttft_tail: float
    gap_p50: float
    gap_tail_q: float
    gap_tail: float
    gap_max: float
    total_p50: float
    goodput: float  # requests within the SLO, by second of arrivals
    kept: float  # share within the SLO


@dataclass(frozen=True)
class Table:
    """A workload's figures."""

    workload: str
    rate: float
    offered: list[float]  # by seed, as a share of the monolith's capacity
    notes: str
    cells: list[Cell]
    ratios: list[Ratio]


@dataclass(frozen=True)
class Saturation:
    """An arm at its most."""

    arm: str
    repeats: int
    text_tokens_per_s: float
    image_tokens_per_s: float
    pictures_per_s: float
    failed: int  # requests


@dataclass(frozen=True)
class Noise:
    """What may have touched the figures, over all open-loop runs; the worst of each."""

    generator_cpu: float  # share of a core that the load generator used
    generator_late_ms: float
    others_cores: float  # used by processes that are no part of this
    steal_share: float  # of all CPU time


@dataclass(frozen=True)
class Analysis:
    """All figures of a report."""

    slo: Slo
    capacity: plan.Capacity
    saturation: list[Saturation]
    tables: list[Table]
    ratios: list[Ratio]
    targets: list[Target]
    noise: Noise
    commits: Counter[str]  # of the code that was measured: runs of each


def analyse(level: Level, store: Store) -> Analysis:
    """Read all runs of a finished level (OSError: one is missing)."""
    slo = isolated_slo(store)
    commits = Counter(run.commit for run in [*_open_loop_runs(level, store), *_calibration_runs(level, store)])
    tables = [_table(level, store, name, slo) for name in level.workloads]
    ratios = [ratio for table in tables for ratio in table.ratios] + _saturation_ratios(level, store)
    return Analysis(
        slo,
        store.capacity(),
        [_saturation(store, arm) for arm in level.arms],
        tables,
        ratios,
        targets(ratios),
        _noise(_open_loop_runs(level, store)),
        commits,
    )


def _open_loop_runs(level: Level, store: Store) -> list[Run]:
    return [
        load_run(store.run(name, seed, arm))
        for name in level.workloads
        for arm in level.arms
        for seed in level.seeds_of(arm)
    ]


def _calibration_runs(level: Level, store: Store) -> list[Run]:
    return [run for arm in level.arms for kind in plan.KINDS for run in store.saturations(kind, arm)]


def _noise(runs: Sequence[Run]) -> Noise:
    return Noise(
        max(run.cpu_share for run in runs),
        max(run.worst_late_s for run in runs) * 1e3,
        max(run.others_cores for run in runs),
        max(run.steal_share for run in runs),
    )


def _table(level: Level, store: Store, name: str, slo: Slo) -> Table:
    workloads = [load_workload(store.workload(name, seed)) for seed in level.seeds]
    runs = {arm: [load_run(store.run(name, seed, arm)) for seed in level.seeds_of(arm)] for arm in level.arms}
    present = {record.modality for run in runs[PRODUCT] for record in run.records}
    seconds = {arm: sum(w.seconds for w in workloads[: len(runs[arm])]) for arm in level.arms}
    kinds = [kind for kind in MODALITIES if kind in present]
    cells = [_cell(level, arm, kind, runs[arm], seconds=seconds[arm], slo=slo) for kind in kinds for arm in level.arms]
    ratios = [ratio for arm in level.arms if arm != PRODUCT for ratio in compare(name, arm, runs, slo, level.tail)]
    offered = [plan.offered(workload, store.capacity()) for workload in workloads]
    return Table(name, workloads[0].rate, offered, workloads[0].notes, cells, ratios)


def _cell(level: Level, arm: str, kind: str, runs: Sequence[Run], *, seconds: float, slo: Slo) -> Cell:
    records = [record for run in runs for record in run.records if record.modality == kind]
    good = answered(records)
    ttft = np.array([ttft_s(record) for record in records])
    gaps = np.array([gap for record in good for gap in record.gaps_s])
    tail, gap_tail = highest_quantile(len(ttft), level.tail), highest_quantile(len(gaps), level.tail)
    kept = sum(slo.kept(record) for record in records)
    return Cell(
        arm,
        kind,
        len(records),
        len(records) - len(good),
        tail,
        quantile(ttft, 0.5) * 1e3,
        quantile(ttft, tail) * 1e3,
        quantile(gaps, 0.5) * 1e3,
        gap_tail,
        quantile(gaps, gap_tail) * 1e3,
        float(gaps.max(initial=0.0)) * 1e3,
        quantile(np.array([record.total_s for record in good if record.total_s is not None]), 0.5) * 1e3,
        kept / seconds,
        kept / len(records) if records else float("nan"),
    )


def _saturation(store: Store, arm: str) -> Saturation:
    text, image = (store.saturations(kind, arm) for kind in plan.KINDS)
    return Saturation(
        arm,
        len(text),
        float(np.mean([run.tokens_per_s for run in text])),
        float(np.mean([run.tokens_per_s for run in image])),
        float(np.mean([run.requests_per_s for run in image])),
        sum(record.outcome != OK for run in text + image for record in run.records),
    )


def _saturation_ratios(level: Level, store: Store) -> list[Ratio]:
    return [
        saturated(measure, arm, store.saturations(kind, PRODUCT), store.saturations(kind, arm))
        for arm in level.arms
        if arm != PRODUCT
        for kind, measure in zip(plan.KINDS, (TEXT_TOKENS, IMAGE_TOKENS), strict=True)
    ]
