"""Measure the product against its alternatives and write a report.

    python -m perf.bench quick       2 minutes: monolith and product, one burst; prints `ratio` lines
    python -m perf.bench standard    20 minutes: all arms, few samples
    python -m perf.bench full        under 100 minutes; stop it and start it again at will

The report goes to perf/reports/DATE-LEVEL/report.html. What is measured already is not measured again: remove the
folder, or name another one with --output, to start afresh. `--accept` makes the ratios those of perf/accepted.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from perf.bench import accepted
from perf.bench.analysis import analyse
from perf.bench.machine import describe
from perf.bench.plan import LEVELS
from perf.bench.report import write_report
from perf.bench.runner import Store, run_level

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run, report, compare; 1 when a ratio fell beyond the wide bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--deployment", type=Path, default=ROOT / "deployments" / "bench-cpu.yaml")
    parser.add_argument("--built", type=Path, help="composed folder; default build/NAME")
    parser.add_argument("--output", type=Path, help="folder of the report")
    parser.add_argument("--accept", action="store_true", help="make these ratios the accepted ones")
    options = parser.parse_args()
    level, machine = LEVELS[options.level], describe()
    folder = options.output or ROOT / "perf" / "reports" / f"{machine.date}-{level.name}"
    built = options.built or ROOT / "build" / options.deployment.stem
    _compose(options.deployment, built)
    begin = time.monotonic()
    run_level(level, built, Store(folder), lambda text: print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True))
    analysis = analyse(level, Store(folder))
    extras = {path.stem: path.read_text() for path in sorted((folder / "tools").glob("*.txt"))}
    print(f"report {write_report(folder, level, analysis, describe(), extras)}")
    for ratio in analysis.ratios:
        print(ratio)
    if options.accept:
        accepted.accept(analysis.ratios, machine)
    fallen = accepted.compare(analysis.ratios)
    for line in fallen:
        print(f"fell: {line}", file=sys.stderr)
    return 1 if fallen else 0


def _compose(deployment: Path, output: Path) -> None:
    from rich.console import Console  # noqa: PLC0415

    from client.serving.compose import compose  # noqa: PLC0415

    compose(deployment, output, Console(), force=False)


if __name__ == "__main__":
    sys.exit(main())
