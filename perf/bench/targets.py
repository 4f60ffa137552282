"""What the product has promised of itself, and whether these figures show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf.baselines.arms import ARMS, MONOLITH
from perf.bench import ratios
from perf.bench.ratios import Ratio

REACHED, MISSED, UNCLEAR = "reached", "missed", "not certain"
_ASKED = 0.99  # quantile
_BURST, _AZURE = "image-burst", "azure-lmm"


@dataclass(frozen=True)
class Target:
    """A ratio that is asked to be at least `wanted`; of latencies at P99."""

    text: str
    wanted: float
    ratio: Ratio

    @property
    def verdict(self) -> str:
        """By the interval: nothing is certain without one, where it holds the wanted value, and of a lower quantile."""
        interval, ratio = self.ratio.interval, self.ratio
        if ratio.quantile is None or ratio.quantile >= _ASKED:
            if interval.low >= self.wanted:
                return REACHED
            if interval.high < self.wanted:
                return MISSED
        of = f"{ratio.level} " if ratio.level else ""
        return f"{UNCLEAR}: {of}{'above' if interval.value >= self.wanted else 'not above'}"

    def __str__(self) -> str:
        ratio = self.ratio
        level = f" {ratio.level}" if ratio.level else ""
        against = f" ({ratio.other})" if ratio.other != MONOLITH else ""
        found = f"{ratio.interval}{level} n={ratio.count}"
        return f"target {self.text}{against}: {found}, asked {self.wanted:.2f}: {self.verdict}"


def targets(found: Sequence[Ratio]) -> list[Target]:
    """Those that were measured."""
    rows: list[tuple[str, float, Ratio | None]] = []
    for name in (_BURST, _AZURE):
        rows.append((f"{name}: text TTFT, monolith", 3.0, _of(found, name, ratios.TEXT_TTFT)))
        rows.append((f"{name}: time between tokens, monolith", 3.0, _of(found, name, ratios.TEXT_GAP)))
    for name in ("share-10", "share-25", _AZURE):  # Azure's own share is 52 %
        rows.append((f"{name}: text TTFT, best of the others", 1.0, _best(found, name, ratios.TEXT_TTFT)))
    for name in dict.fromkeys(ratio.workload for ratio in found if ratio.workload != ratios.SATURATION):
        wanted = 1 / (1.5 if name == _BURST else 1.25)
        rows.append((f"{name}: image TTFT, monolith", wanted, _of(found, name, ratios.IMAGE_TTFT)))
    for measure in (ratios.TEXT_TOKENS, ratios.IMAGE_TOKENS):
        rows.append((f"saturation: {measure}, monolith", 0.95, _of(found, ratios.SATURATION, measure)))
    rows.append(
        (f"{_AZURE}: goodput, best of all others", 1.5, _best(found, _AZURE, ratios.GOODPUT, with_monolith=True))
    )
    return [Target(text, wanted, ratio) for text, wanted, ratio in rows if ratio is not None]


def _of(found: Iterable[Ratio], workload: str, measure: str, other: str = MONOLITH) -> Ratio | None:
    return next((r for r in found if (r.workload, r.measure, r.other) == (workload, measure, other)), None)


def _best(found: Iterable[Ratio], workload: str, measure: str, *, with_monolith: bool = False) -> Ratio | None:
    """Against the arm that comes off best; variants of the product and outside peers are no competitors here."""
    rivals = {arm for arm, entry in ARMS.items() if not entry.peer and (with_monolith or arm != MONOLITH)}
    among = [r for r in found if (r.workload, r.measure) == (workload, measure) and r.other in rivals]
    among = [r for r in among if not math.isnan(r.interval.value)]
    return min(among, key=lambda r: r.interval.value, default=None)
