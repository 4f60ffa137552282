"""The regression guard: key ratios against the last accepted ones, with bounds as wide as a shared machine's noise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from perf.bench.machine import Machine
from perf.bench.ratios import Ratio

ACCEPTED = Path(__file__).resolve().parents[1] / "accepted.json"
_BOUND = 3.0  # a ratio may fall to a third before it fails


def compare(level: str, ratios: Sequence[Ratio], path: Path = ACCEPTED) -> list[str]:
    """A sentence for each ratio that fell beyond the bound, or is no number or not there any more.

    Ratios that nobody accepted yet are not judged, and none of another level: it has other arrivals.
    """
    try:
        file = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    if file["level"] != level:
        return []
    accepted: dict[str, float] = file["ratios"]
    found = {ratio.name: ratio.interval.value for ratio in ratios}
    return [
        f"{name}: {found.get(name, math.nan):.2f} was {value:.2f} when last accepted"
        for name, value in accepted.items()
        if not found.get(name, math.nan) >= value / _BOUND
    ]


def accept(level: str, ratios: Sequence[Ratio], machine: Machine, path: Path = ACCEPTED) -> None:
    """Make these the accepted ones."""
    values = {r.name: round(r.interval.value, 3) for r in ratios if math.isfinite(r.interval.value)}
    path.write_text(json.dumps({"level": level, "machine": asdict(machine), "ratios": values}, indent=1) + "\n")
