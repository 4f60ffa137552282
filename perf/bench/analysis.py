"""From the records of a level to the figures of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from perf.baselines.arms import ARMS, MONOLITH, PRODUCT
from perf.bench import plan
from perf.bench.plan import Level
from perf.bench.runner import Store
from perf.load import OK, Record, Run, answered, load_run
from perf.statistics import Block, Interval, highest_quantile, make_blocks, paired_ratio, quantile
from perf.workloads import MODALITIES, load_workload

_BLOCK_S = 4.0  # about the time that one picture-heavy request holds others up
_CALIBRATION_SEED = 1000


@dataclass(frozen=True)
class Slo:
    """What a class is promised: `plan.SLO_FACTOR` times the monolith's own when it has nothing else to do."""

    ttft_s: dict[str, float]  # by modality; of one picture, and pro rata for more
    gap_s: float  # between tokens, mean of a request

    def kept(self, record: Record) -> bool:
        """Whether this request was served as promised."""
        if record.outcome != OK or record.ttft_s is None:
            return False
        gap_s = float(np.mean(record.gaps_s)) if record.gaps_s else 0.0
        return record.ttft_s <= self.ttft_slo_s(record) and gap_s <= self.gap_s

    def ttft_slo_s(self, record: Record) -> float:
        """A request with many pictures has the time of as many."""
        text_s, image_s = self.ttft_s["text"], self.ttft_s["image"]
        return text_s if not record.pictures else text_s + record.pictures * max(0.0, image_s - text_s)


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
    gap_p99: float
    gap_max: float
    total_p50: float
    goodput: float  # requests a second within the SLO
    kept: float  # share within the SLO


@dataclass(frozen=True)
class Ratio:
    """One line of the summary. Above 1 is good for the product."""

    name: str
    interval: Interval

    def __str__(self) -> str:
        return f"ratio {self.name} {self.interval}"


@dataclass(frozen=True)
class Table:
    """A workload's figures."""

    workload: str
    rate: float
    seconds: float
    notes: str
    cells: list[Cell]
    ratios: list[Ratio]


@dataclass(frozen=True)
class Saturation:
    """An arm at its most."""

    arm: str
    text_tokens_per_s: float
    image_tokens_per_s: float
    pictures_per_s: float


@dataclass(frozen=True)
class Analysis:
    """All figures of a report."""

    slo: Slo
    capacity: plan.Capacity
    saturation: list[Saturation]
    tables: list[Table]
    ratios: list[Ratio]  # the key ones
    generator_cpu: float  # the most of a core that the load generator used in an open-loop run
    generator_late_ms: float


def analyse(level: Level, store: Store) -> Analysis:
    """Read all runs of a finished level (OSError: one is missing)."""
    slo = isolated_slo(store)
    saturation = [_saturation(store, arm) for arm in level.arms]
    tables = [_table(level, store, name, slo) for name in level.workloads]
    runs = [
        load_run(store.run(name, seed, arm)) for name in level.workloads for seed in level.seeds for arm in level.arms
    ]
    return Analysis(
        slo,
        store.capacity(),
        saturation,
        tables,
        [ratio for table in tables for ratio in table.ratios] + _saturation_ratios(saturation),
        max(run.cpu_share for run in runs),
        max(run.worst_late_s for run in runs) * 1e3,
    )


def isolated_slo(store: Store) -> Slo:
    """From the monolith, one request at a time."""
    runs = {
        name.removeprefix("single-"): load_run(store.run(f"isolated-{name}", _CALIBRATION_SEED, MONOLITH))
        for name in plan.ISOLATED
    }
    ttft = {
        kind: plan.SLO_FACTOR * float(np.median([r.ttft_s for r in answered(run.records) if r.ttft_s is not None]))
        for kind, run in runs.items()
    }
    gaps = [gap for record in answered(runs["text"].records) for gap in record.gaps_s]
    return Slo(ttft, plan.SLO_FACTOR * float(np.median(gaps)))


def _table(level: Level, store: Store, name: str, slo: Slo) -> Table:
    workloads = [load_workload(store.workload(name, seed)) for seed in level.seeds]
    runs = {arm: [load_run(store.run(name, seed, arm)) for seed in level.seeds] for arm in level.arms}
    present = [kind for kind in MODALITIES if any(r.modality == kind for r in runs[level.arms[0]][0].records)]
    cells = [_cell(level, arm, kind, runs[arm], slo) for kind in present for arm in level.arms]
    ratios = _ratios(level, name, runs, slo) if {MONOLITH, PRODUCT} <= set(level.arms) else []
    return Table(name, workloads[0].rate, workloads[0].seconds, workloads[0].notes, cells, ratios)


def _cell(level: Level, arm: str, kind: str, runs: Sequence[Run], slo: Slo) -> Cell:
    records = [record for run in runs for record in run.records if record.modality == kind]
    good = answered(records)
    tail = highest_quantile(len(records), level.tail)
    ttft = np.array([_ttft_s(record) for record in records])
    gaps = np.array([gap for record in good for gap in record.gaps_s])
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
        quantile(gaps, 0.99) * 1e3,
        float(gaps.max(initial=0.0)) * 1e3,
        quantile(np.array([record.total_s for record in good if record.total_s is not None]), 0.5) * 1e3,
        kept / sum(run.wall_s for run in runs),
        kept / len(records) if records else float("nan"),
    )


def _ratios(level: Level, name: str, runs: dict[str, list[Run]], slo: Slo) -> list[Ratio]:
    """Product against each other arm, arrivals paired."""
    found = []
    for other in (arm for arm in level.arms if arm != PRODUCT):
        for kind in ("text", "image"):
            blocks = _blocks(runs, other, kind, _ttft_s)
            if blocks:
                q = highest_quantile(sum(len(block.values[PRODUCT]) for block in blocks), level.tail)
                interval = paired_ratio(blocks, other, PRODUCT, partial(quantile, q=q))
                found.append(Ratio(f"{name} {kind} TTFT P{q * 100:.0f} {other}/{PRODUCT}", interval))
        gaps = _blocks(runs, other, "text", _longest_gap_s)
        if gaps:
            interval = paired_ratio(gaps, other, PRODUCT, partial(quantile, q=0.9))
            found.append(Ratio(f"{name} text P90 of the longest gap {other}/{PRODUCT}", interval))
        kept = _blocks(runs, other, None, lambda record: float(slo.kept(record)))
        interval = paired_ratio(kept, PRODUCT, other, lambda values: float(values.mean()))
        found.append(Ratio(f"{name} requests within SLO {PRODUCT}/{other}", interval))
    return found


def _blocks(runs: dict[str, list[Run]], other: str, kind: str | None, value: Callable[[Record], float]) -> list[Block]:
    """One value a request, of one class or all, in blocks of neighbours."""
    blocks: list[Block] = []
    for pair in zip(runs[other], runs[PRODUCT], strict=True):
        records = [[record for record in run.records if kind in (None, record.modality)] for run in pair]
        values = {arm: [value(r) for r in part] for arm, part in zip((other, PRODUCT), records, strict=True)}
        blocks += make_blocks(values, [record.intended_s for record in records[0]], _BLOCK_S)
    return blocks


def _ttft_s(record: Record) -> float:
    """A request that was not answered has waited for ever."""
    return np.inf if record.outcome != OK or record.ttft_s is None else record.ttft_s


def _longest_gap_s(record: Record) -> float:
    return max(record.gaps_s, default=0.0) if record.outcome == OK else np.inf


def _saturation(store: Store, arm: str) -> Saturation:
    text, image = (load_run(store.run(f"saturation-{name}", _CALIBRATION_SEED, arm)) for name in plan.SATURATION)
    return Saturation(arm, text.tokens_per_s, image.tokens_per_s, image.requests_per_s)


def _saturation_ratios(saturation: Sequence[Saturation]) -> list[Ratio]:
    by_arm = {entry.arm: entry for entry in saturation}
    if not {MONOLITH, PRODUCT} <= set(by_arm):
        return []
    ours, theirs = by_arm[PRODUCT], by_arm[MONOLITH]
    pairs = {
        "text": ours.text_tokens_per_s / theirs.text_tokens_per_s,
        "image": ours.image_tokens_per_s / theirs.image_tokens_per_s,
    }
    return [
        Ratio(f"saturation {kind} tokens/s {PRODUCT}/{MONOLITH}", Interval(value, value, value))
        for kind, value in pairs.items()
    ]


def label(arm: str) -> str:
    """An arm's name in tables."""
    return ARMS[arm].label
