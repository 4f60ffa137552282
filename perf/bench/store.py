"""Where a level's workloads and runs lie."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from perf.baselines.arms import MONOLITH
from perf.bench import plan
from perf.load import Run, load_run

REPORT = "report.html"
SETUP = "setup.json"
CALIBRATION_SEED = 1000  # of no workload; the repeats of a calibration count up from it


@dataclass(frozen=True)
class Store:
    """One folder."""

    folder: Path

    def clear(self) -> None:
        """Forget what was measured; what other tools left there stays."""
        for measured in ("runs", "workloads"):
            shutil.rmtree(self.folder / measured, ignore_errors=True)
        for file in (SETUP, REPORT):
            (self.folder / file).unlink(missing_ok=True)

    def run(self, name: str, seed: int, arm: str) -> Path:
        """The records of one run."""
        return self.folder / "runs" / f"{name}.{seed}.{arm}.jsonl"

    def workload(self, name: str, seed: int) -> Path:
        """What was asked in it."""
        return self.folder / "workloads" / f"{name}.{seed}.jsonl"

    def saturations(self, kind: str, arm: str) -> list[Run]:
        """The saturation runs of an arm, as many as there are."""
        runs: list[Run] = []
        while (path := self.run(f"saturation-{kind}", CALIBRATION_SEED + len(runs), arm)).exists():
            runs.append(load_run(path))
        return runs

    def capacity(self) -> plan.Capacity:
        """Of the monolith, once it was saturated; its first repeat, which set the rates."""
        text, image = (load_run(self.run(f"saturation-{kind}", CALIBRATION_SEED, MONOLITH)) for kind in plan.KINDS)
        return plan.capacity(text, image)
