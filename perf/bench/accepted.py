"""The regression guard: key ratios against the last accepted ones, with bounds as wide as a shared machine's noise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perf.bench.machine import Machine
from perf.bench.ratios import Ratio

ACCEPTED = Path(__file__).resolve().parents[1] / "accepted.json"
_BOUND = 5.0  # a ratio may fall to a fifth: in four runs of `quick` within a day time between tokens was 4.1 to 26
_FEWEST = 8  # requests: of fewer the ratio is any number
# The same of a quantile: P75 of twelve text requests was 13 and 0.71 within a day, as three or four came to wait.
_FEWEST_OF_A_QUANTILE = 50


def compare(level: str, ratios: Sequence[Ratio], path: Path = ACCEPTED) -> list[str]:
    """A sentence for each ratio that fell beyond the bound, or is no number or not there any more.

    Ratios that nobody accepted yet are not judged, and none of another level: it has other arrivals.
    """
    accepted: dict[str, float] = _levels(path).get(level, {"ratios": {}})["ratios"]
    found = {ratio.name: ratio.interval.value for ratio in ratios}
    return [
        f"{name}: {found.get(name, math.nan):.2f} was {value:.2f} when last accepted"
        for name, value in accepted.items()
        if not found.get(name, math.nan) >= value / _BOUND
    ]


def accept(level: str, ratios: Sequence[Ratio], machine: Machine, path: Path = ACCEPTED) -> None:
    """Make these the level's accepted ones; those of a handful of requests guard nothing and are left out."""
    enough = [ratio for ratio in ratios if ratio.count >= _fewest(ratio) and math.isfinite(ratio.interval.value)]
    values = {ratio.name: round(ratio.interval.value, 3) for ratio in enough}
    levels = _levels(path) | {level: {"machine": asdict(machine), "ratios": values}}
    path.write_text(json.dumps(levels, indent=1) + "\n")


def _fewest(ratio: Ratio) -> int:
    return _FEWEST if ratio.quantile is None else _FEWEST_OF_A_QUANTILE


def _levels(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}
