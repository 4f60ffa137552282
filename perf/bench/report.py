"""The report: one HTML page, and a plot a workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import jinja2

from perf.baselines.arms import PRODUCT, label
from perf.bench import plan
from perf.bench.analysis import Analysis
from perf.bench.machine import Machine
from perf.bench.plan import Level
from perf.bench.plots import plot_workload
from perf.bench.ratios import Ratio
from perf.bench.store import REPORT, Store
from perf.load import load_run
from perf.statistics import MIN_BLOCKS

TEMPLATE = Path(__file__).with_name("template.html.j2")


def write_report(
    store: Store,
    folder: Path,
    level: Level,
    analysis: Analysis,
    machine: Machine,
    *,
    extras: Mapping[str, str],
) -> Path:
    """Write report.html and the plots into `folder`; `extras` are more sections of plain text by title."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in analysis.tables:
        runs = {
            arm: [load_run(store.run(table.workload, seed, arm)) for seed in level.seeds_of(arm)] for arm in level.arms
        }
        plot_workload(folder / f"{table.workload}.png", runs, table.ratios)
    page = folder / REPORT
    page.write_text(render(level, analysis, machine, extras))
    return page


def render(level: Level, analysis: Analysis, machine: Machine, extras: Mapping[str, str]) -> str:
    """The page."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(TEMPLATE.read_text()).render(
        level=level,
        a=analysis,
        machine=asdict(machine),
        product=PRODUCT,
        slo_factor=plan.SLO_FACTOR,
        saturated=plan.SATURATED,
        min_blocks=MIN_BLOCKS,
        extras=extras,
        label=label,
        ms=lambda seconds: f"{seconds * 1e3:,.0f}",
        number=_number,
        ratio=_ratio,
        grade=grade,
        find=_find,
    )


def grade(ratio: Ratio) -> str:
    """`win` or `loss` where the interval leaves no doubt, else `perhaps-win` or `perhaps-loss`."""
    interval = ratio.interval
    if math.isnan(interval.value):
        return ""
    if interval.low > 1:
        return "win"
    if interval.high < 1:
        return "loss"
    return "perhaps-loss" if interval.value < 1 else "perhaps-win"


def _find(ratios: list[Ratio], measure: str, other: str) -> Ratio | None:
    return next((ratio for ratio in ratios if (ratio.measure, ratio.other) == (measure, other)), None)


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _ratio(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "∞" if math.isinf(value) else f"{value:.2f}"
