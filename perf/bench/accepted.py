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


def compare(ratios: Sequence[Ratio], path: Path = ACCEPTED) -> list[str]:
    """A sentence for each ratio that fell beyond the bound; ratios that nobody accepted yet are not judged."""
    try:
        accepted: dict[str, float] = json.loads(path.read_text())["ratios"]
    except FileNotFoundError:
        return []
    return [
        f"{ratio.name}: {ratio.interval.value:.2f} was {accepted[ratio.name]:.2f} when last accepted"
        for ratio in ratios
        if ratio.name in accepted and ratio.interval.value < accepted[ratio.name] / _BOUND
    ]


def accept(ratios: Sequence[Ratio], machine: Machine, path: Path = ACCEPTED) -> None:
    """Make these the accepted ones."""
    values = {r.name: round(r.interval.value, 3) for r in ratios if math.isfinite(r.interval.value)}
    path.write_text(json.dumps({"machine": asdict(machine), "ratios": values}, indent=1) + "\n")
