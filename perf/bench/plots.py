"""The plot of a workload: who waited when, how long each class waited, and every ratio with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perf.baselines.arms import PRODUCT, label
from perf.bench.ratios import Ratio, ttft_s
from perf.load import Record, Run

_FARTHEST = 50.0  # a ratio beyond it, or to an arm that never answered, is drawn there


def plot_workload(path: Path, runs: Mapping[str, Sequence[Run]], ratios: Sequence[Ratio]) -> None:
    """runs[arm] has one run a seed; written as PNG."""
    import matplotlib  # noqa: PLC0415  (the extra `bench`)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained")
    colours = {arm: f"C{index}" for index, arm in enumerate(arm for arm in runs if arm != PRODUCT)}
    colours[PRODUCT] = "black"
    for arm in runs:
        style = {"color": colours[arm], "label": label(arm), "lw": 2.2 if arm == PRODUCT else 1.2}
        _over_time(axes[0, 0], runs[arm][0].records, style)
        records = [record for run in runs[arm] for record in run.records]
        _distribution(axes[0, 1], [r for r in records if r.modality == "text"], style)
        _distribution(axes[1, 0], [r for r in records if r.modality != "text"], style)
    axes[0, 0].set(title="text TTFT by time of arrival, first seed (x: not answered)", xlabel="s", ylabel="s")
    axes[0, 0].set_yscale("log")
    axes[0, 0].legend(fontsize=8)
    axes[0, 1].set(title="text: share with a TTFT of at most", xlabel="s", xscale="log", ylim=(0, 1.02))
    axes[1, 0].set(
        title="requests with pictures: share with a TTFT of at most", xlabel="s", xscale="log", ylim=(0, 1.02)
    )
    _ratios(axes[1, 1], ratios, colours)
    for each in axes.flat:
        each.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _over_time(axes: Any, records: Sequence[Record], style: Mapping[str, Any]) -> None:
    points = [(record.intended_s, ttft_s(record)) for record in records if record.modality == "text"]
    done = [(at, ttft) for at, ttft in points if math.isfinite(ttft)]
    axes.plot([at for at, _ in done], [ttft for _, ttft in done], "o-", ms=3, **style)
    lost = [at for at, ttft in points if math.isinf(ttft)]
    axes.plot(lost, [100.0] * len(lost), "x", color=style["color"])


def _distribution(axes: Any, records: Sequence[Record], style: Mapping[str, Any]) -> None:
    """A curve that ends below 1 has requests without an answer."""
    values = np.sort([ttft_s(record) for record in records])
    share = np.arange(1, len(values) + 1) / max(1, len(values))
    finite = np.isfinite(values)
    axes.step(values[finite], share[finite], where="post", **style)


def _ratios(axes: Any, ratios: Sequence[Ratio], colours: Mapping[str, str]) -> None:
    """A row a measure, in it a dot with its interval for every other arm; left of 1 the product loses."""
    measures = list(dict.fromkeys(ratio.measure for ratio in ratios))
    arms = list(dict.fromkeys(ratio.other for ratio in ratios))
    for ratio in ratios:
        if math.isnan(ratio.interval.value):
            continue
        y = -measures.index(ratio.measure) - 0.7 * arms.index(ratio.other) / max(1, len(arms))
        low, value, high = (_bounded(x) for x in (ratio.interval.low, ratio.interval.value, ratio.interval.high))
        if not math.isnan(low):
            axes.plot([low, high], [y, y], color=colours[ratio.other], lw=1.5)
        axes.plot([value], [y], "o", color=colours[ratio.other], ms=5)
    axes.axvline(1.0, color="black", lw=1)
    axes.axvspan(1 / _FARTHEST, 1.0, color="#b00020", alpha=0.08)
    axes.set(title="ratio to each arm (left of 1: loss)", xscale="log", xlim=(1 / _FARTHEST, _FARTHEST * 1.1))
    axes.set_yticks([-index - 0.3 for index in range(len(measures))], measures)


def _bounded(value: float) -> float:
    return value if math.isnan(value) else min(max(value, 1 / _FARTHEST), _FARTHEST)
