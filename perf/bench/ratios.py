"""The product against another arm on the same arrivals: every ratio of a report. Above 1 is good for the product."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perf.baselines.arms import PRODUCT
from perf.bench.slo import Slo
from perf.load import OK, Record, Run
from perf.statistics import Block, Interval, highest_quantile, make_blocks, paired_ratio

TEXT_TTFT, IMAGE_TTFT, TEXT_GAP = "text TTFT", "image TTFT", "text time between tokens"
GOODPUT = "requests within SLO"
TEXT_TOKENS, IMAGE_TOKENS = "text tokens/s", "image tokens/s"
SATURATION = "saturation"
_Value = Callable[[Record], float | Sequence[float]]  # what a request contributes
_BLOCK_S = 10.0  # of arrivals; about the time that one picture-heavy request holds others up


@dataclass(frozen=True)
class Ratio:
    """One line of the summary."""

    workload: str
    measure: str
    other: str  # the arm that the product is compared with
    interval: Interval
    count: int  # requests (tokens for times between tokens) of the side that has fewer
    quantile: float | None = None

    @property
    def name(self) -> str:
        """What is compared, without the quantile that this sample happened to bear."""
        arms = f"{self.other}/{PRODUCT}" if self.quantile is not None else f"{PRODUCT}/{self.other}"
        return f"{self.workload} {self.measure} {arms}"

    @property
    def level(self) -> str:
        """Such as P95; nothing for a rate."""
        return "" if self.quantile is None else f"P{self.quantile * 100:.0f}"

    def __str__(self) -> str:
        level = f" {self.level}" if self.level else ""
        return f"ratio {self.name}{level} {self.interval} n={self.count}"


def compare(name: str, other: str, runs: Mapping[str, Sequence[Run]], slo: Slo, tail: int) -> list[Ratio]:
    """All ratios of a workload against one arm; runs[arm] has one run a seed, the first seeds first."""
    latencies: tuple[tuple[str, str, _Value], ...] = (
        (TEXT_TTFT, "text", ttft_s),
        (IMAGE_TTFT, "image", ttft_s),
        (TEXT_GAP, "text", _gaps_s),
    )
    found = []
    for measure, kind, values in latencies:
        blocks = _blocks(runs, other, kind, values)
        count = min(sum(len(block.values[arm]) for block in blocks) for arm in (PRODUCT, other))
        if count:
            q = highest_quantile(count, tail)
            found.append(Ratio(name, measure, other, paired_ratio(blocks, other, PRODUCT, q), count, q))
    kept = _blocks(runs, other, None, lambda record: float(slo.kept(record)))
    count = sum(len(block.values[PRODUCT]) for block in kept)
    return [*found, Ratio(name, GOODPUT, other, paired_ratio(kept, PRODUCT, other, None), count)]


def saturated(measure: str, other: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Ratio:
    """Throughput at saturation; the interval is the range of the repeats, NaN when there was one."""
    pairs = list(zip(ours, theirs, strict=False))  # of the same requests
    above, below = (np.array([run.tokens_per_s for run in side]) for side in zip(*pairs, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # an arm that answered nothing
        value, repeats = float(above.mean() / below.mean()), above / below
    low, high = (float(repeats.min()), float(repeats.max())) if len(pairs) > 1 else (math.nan, math.nan)
    return Ratio(SATURATION, measure, other, Interval(value, low, high), sum(len(run.records) for run, _ in pairs))


def ttft_s(record: Record) -> float:
    """A request that was not answered has waited for ever."""
    return math.inf if record.outcome != OK or record.ttft_s is None else record.ttft_s


def _gaps_s(record: Record) -> Sequence[float]:
    return record.gaps_s if record.outcome == OK else [math.inf] * max(1, record.answer_tokens - 1)


def _blocks(runs: Mapping[str, Sequence[Run]], other: str, kind: str | None, value: _Value) -> list[Block]:
    """The values of one class or all, in blocks of neighbours; only of the seeds that both arms ran."""
    blocks: list[Block] = []
    for pair in zip(runs[other], runs[PRODUCT], strict=False):
        records = [[record for record in run.records if kind in (None, record.modality)] for run in pair]
        values = {arm: [value(r) for r in part] for arm, part in zip((other, PRODUCT), records, strict=True)}
        blocks += make_blocks(values, [record.intended_s for record in records[0]], _BLOCK_S)
    return blocks
