"""Measure the product against its alternatives and write a report.

    python -m perf.bench quick       2 to 4 minutes: monolith and product, one burst; prints `ratio` lines
    python -m perf.bench standard    20 minutes: all arms, few samples
    python -m perf.bench full        under 100 minutes; stop it and start it again at will
    python -m perf.bench full --seeds 12       goes on where `full` ended: more samples, higher quantiles
    python -m perf.bench quick --variant yield:pools.vision.nice=10,pools.text.prefill_tokens=64
                                     an experiment: the product with other values, on the same arrivals

The report goes to perf/reports/DATE-LEVEL/report.html. What is measured already is not measured again: remove the
folder, or name another one with --output, to start afresh. `--accept` makes the ratios those of perf/accepted.json.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perf.baselines.arms import ARMS, MONOLITH, PRODUCT
from perf.bench import accepted
from perf.bench.analysis import analyse
from perf.bench.machine import describe
from perf.bench.plan import LEVELS, Level
from perf.bench.report import write_report
from perf.bench.runner import run_level
from perf.bench.store import Store
from perf.deployments import changed, parse_changes
from perf.workloads import SHAPES

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run, report, compare; 1 when a ratio fell beyond the wide bounds."""
    options = _options()
    variants = dict(_variant(text) for text in options.variant)
    level, machine = _level(options, tuple(variants)), describe()
    folder = options.output or ROOT / "perf" / "reports" / f"{machine.date}-{options.level}"
    built = options.built or ROOT / "build" / options.deployment.stem
    begin = time.monotonic()
    run_level(
        level,
        _composer(options.deployment, variants, built, folder),
        Store(folder),
        lambda text: print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True),
    )
    analysis = analyse(level, Store(folder))
    extras = {path.stem: path.read_text() for path in sorted((folder / "tools").glob("*.txt"))}
    print(f"report {write_report(folder, level, analysis, machine, extras)}")
    for target in analysis.targets:
        print(f"target {target.text}: {target.ratio.interval}, asked {target.wanted:.2f}: {target.verdict}")
    for ratio in analysis.ratios:
        print(ratio)
    if options.accept:
        accepted.accept(analysis.ratios, machine)
    fallen = accepted.compare(analysis.ratios)
    for line in fallen:
        print(f"fell: {line}", file=sys.stderr)
    return 1 if fallen else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--deployment", type=Path, default=ROOT / "deployments" / "bench-cpu.yaml")
    parser.add_argument("--built", type=Path, help="composed folder; default build/NAME")
    parser.add_argument("--output", type=Path, help="folder of the report")
    parser.add_argument("--arms", help=f"comma-separated, of {', '.join(ARMS)}; {MONOLITH} and {PRODUCT} are always in")
    parser.add_argument("--workloads", help=f"comma-separated, of {', '.join(SHAPES)}")
    parser.add_argument("--seeds", type=int, help="how many runs of each workload, each with arrivals of its own")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...", help="one more arm")
    parser.add_argument("--accept", action="store_true", help="make these ratios the accepted ones")
    options = parser.parse_args()
    for name, known in (("arms", ARMS), ("workloads", SHAPES)):
        asked = (getattr(options, name) or "").split(",")
        if unknown := [entry for entry in asked if entry and entry not in known]:
            parser.error(f"--{name}: {', '.join(unknown)} is not one of {', '.join(known)}")
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds must be at least 1")
    return options


def _level(options: argparse.Namespace, variants: tuple[str, ...]) -> Level:
    """The level as it was asked for."""
    level = LEVELS[options.level]
    arms = {MONOLITH, PRODUCT, *options.arms.split(",")} if options.arms else set(level.arms)
    return replace(
        level,
        arms=(*(arm for arm in ARMS if arm in arms), *variants),
        seconds=_seconds(level, options.workloads.split(",")) if options.workloads else level.seconds,
        seeds=tuple(range(1, options.seeds + 1)) if options.seeds else level.seeds,
    )


def _seconds(level: Level, workloads: list[str]) -> dict[str, float]:
    """Those that the level does not have run for as long as its longest."""
    longest = max(level.seconds.values())
    return {name: level.seconds.get(name, longest) for name in workloads}


def _variant(text: str) -> tuple[str, dict[str, Any]]:
    name, _, changes = text.partition(":")
    if not re.fullmatch(r"[a-z0-9-]+", name) or name in ARMS:
        raise SystemExit(f"--variant: {name!r} must be lower-case letters, digits and dashes, and no arm's name")
    try:
        return name, parse_changes(changes.split(","))
    except ValueError as error:
        raise SystemExit(f"--variant {name}: {error}") from None


def _composer(
    deployment: Path, variants: Mapping[str, Mapping[str, Any]], built: Path, folder: Path
) -> Callable[[str], Path]:
    """Composes an arm's deployment into `built`; the artifacts stay the same, so that this takes a second."""
    from rich.console import Console  # noqa: PLC0415

    from client.serving.compose import compose  # noqa: PLC0415

    def of(arm: str) -> Path:
        changes = variants.get(arm)
        file = changed(deployment, changes, folder / "variants" / f"{arm}.yaml") if changes else deployment
        compose(file, built, Console(stderr=True), force=False)
        return built

    return of


if __name__ == "__main__":
    sys.exit(main())
