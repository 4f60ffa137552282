"""The report: one HTML page, and a plot a workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2

from perf.baselines.arms import PRODUCT
from perf.bench import plan
from perf.bench.analysis import Analysis, label
from perf.bench.machine import Machine
from perf.bench.plan import Level
from perf.bench.runner import Store
from perf.load import Record, load_run

TEMPLATE = Path(__file__).with_name("template.html.j2")


@dataclass(frozen=True)
class Series:
    """What a plot shows of one arm."""

    arm: str
    records: Sequence[Record]


def write_report(
    folder: Path, level: Level, analysis: Analysis, machine: Machine, extras: Mapping[str, str] | None = None
) -> Path:
    """Write report.html and the plots into `folder`; `extras` are more sections of plain text by title."""
    store = Store(folder)
    for name in level.workloads:
        series = [Series(arm, load_run(store.run(name, level.seeds[0], arm)).records) for arm in level.arms]
        plot_ttft(folder / f"{name}.png", series)
    page = folder / "report.html"
    page.write_text(render(level, analysis, machine, extras or {}))
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
        extras=extras,
        label=label,
        ms=lambda seconds: f"{seconds * 1e3:.0f}",
        number=_number,
    )


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "never" if math.isinf(value) else f"{value:,.0f}"


def plot_ttft(path: Path, series: Sequence[Series]) -> None:
    """TTFT of text by time of arrival, and the distributions of text and image TTFT."""
    import matplotlib  # noqa: PLC0415  (the extra `bench`)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (over_time, text, image) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for entry in series:
        name = label(entry.arm)
        done = [(r.intended_s, r.ttft_s, r.modality) for r in entry.records if r.ttft_s is not None]
        texts = [(at, ttft) for at, ttft, modality in done if modality == "text"]
        over_time.plot([at for at, _ in texts], [ttft for _, ttft in texts], "o-", ms=3, lw=0.8, label=name)
        for axes, values in (
            (text, [ttft for _, ttft in texts]),
            (image, [ttft for _, ttft, kind in done if kind != "text"]),
        ):
            if values:
                axes.ecdf(values, label=name)
    over_time.set(title="text TTFT by arrival", xlabel="s", ylabel="s", yscale="log")
    text.set(title="text TTFT", xlabel="s", ylabel="share of requests", xscale="log")
    image.set(title="TTFT of requests with pictures", xlabel="s", ylabel="share of requests", xscale="log")
    over_time.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
