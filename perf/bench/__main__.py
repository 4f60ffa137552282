"""Measure the product against its alternatives and write a report.

    python -m perf.bench quick       2 to 4 minutes: monolith and product, one burst; prints `ratio` lines
    python -m perf.bench standard    20 minutes: all arms, few samples
    python -m perf.bench full        some 100 minutes; stop it and start it again at will
    python -m perf.bench full --seeds 12       goes on where `full` ended: more samples, higher quantiles
    python -m perf.bench quick --variant yield:pools.vision.nice=10,pools.text.prefill_tokens=64
                                     an experiment: the product with other values, on the same arrivals

The report goes to perf/reports/DATE-LEVEL/report.html. `quick` always measures, unless it is given a folder of its own.
The others go on in the newest folder of their level while it has no report, and in any case with --seeds, --arms,
--workloads or --variant; what is measured already is not measured again: name another folder with --output to start
afresh. With --arms or --workloads the report goes into a folder of that folder, only-ARMS-WORKLOADS; arms that are
asked for run as often as the others (`full` runs two of them with the first arrivals only).
`--accept` makes the ratios those of perf/accepted.json.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perf import command
from perf.baselines.arms import ARMS, MONOLITH, PRODUCT
from perf.bench import accepted
from perf.bench.analysis import analyse
from perf.bench.machine import describe
from perf.bench.plan import LEVELS, Level
from perf.bench.report import write_report
from perf.bench.runner import run_level
from perf.bench.setup import Setup
from perf.bench.store import REPORT, Store
from perf.deployments import changed, parse_changes
from perf.workloads import SHAPES
from python_backends.deployment import load_deployment

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run, report, compare; 1 when a ratio fell beyond the wide bounds, or an arm was left out."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # in order: it has started servers
    variants = dict(_variant(text) for text in options.variant)
    level, machine = _level(options, tuple(variants)), describe()
    setup = Setup.of(level.name, machine, options.deployment, variants)
    folder = options.output or _folder(ROOT / "perf" / "reports", setup, machine.date, more=_is_part(options))
    store = Store(folder)
    if level.name == "quick" and not options.output:
        store.clear()  # a guard that shows the figures of the morning guards nothing
    setup.claim(folder)
    deployments = _deployments(options.deployment, variants, folder)
    left_out = _run(options, level, deployments, store, machine.commit)
    level = replace(level, arms=tuple(arm for arm in level.arms if arm not in left_out))
    analysis = analyse(level, store)
    extras = {path.stem: path.read_text() for path in sorted((folder / "tools").glob("*.txt"))}
    extras |= {f"{arm} is left out": reason for arm, reason in left_out.items()}
    narrowed = [selection.replace(",", "+") for selection in (options.arms, options.workloads) if selection]
    target_folder = folder / "-".join(["only", *narrowed]) if narrowed else folder
    print(f"report {write_report(store, target_folder, level, analysis, machine, extras=extras)}")
    for target in analysis.targets:
        print(target)
    for ratio in analysis.ratios:
        print(ratio)
    if options.accept:
        accepted.accept(level.name, analysis.ratios, machine)
    fallen = [] if narrowed else accepted.compare(level.name, analysis.ratios)
    for line in fallen:
        print(f"fell: {line}", file=sys.stderr)
    return 1 if fallen or left_out else 0


def _deployments(deployment: Path, variants: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Path]:
    """The file of the product and of each variant, looked at before anything runs (DeploymentError, ValueError)."""
    files = {PRODUCT: deployment}
    for name, changes in variants.items():
        files[name] = changed(deployment, changes, folder / "variants" / f"{name}.yaml")
    for file in files.values():
        load_deployment(file)
    return files


def _is_part(options: argparse.Namespace) -> bool:
    """Whether it adds to a finished level, or looks at a part of it."""
    return bool(options.arms or options.workloads or options.seeds or options.variant)


def _folder(reports: Path, setup: Setup, date: str, *, more: bool) -> Path:
    """Where this level is measured: the newest folder, if it is not finished or is to have `more`; else today's."""
    today = reports / f"{date}-{setup.level}"
    if setup.level == "quick":
        return today
    begun = sorted(folder for folder in reports.glob(f"*-{setup.level}") if setup.fits(folder))
    goes_on = begun and (more or not (begun[-1] / REPORT).exists())
    return begun[-1] if goes_on else today


def _run(
    options: argparse.Namespace, level: Level, deployments: Mapping[str, Path], store: Store, commit: str
) -> dict[str, str]:
    """Measure what is not there yet; the arms that were left out, with the reason."""
    if there := sum(1 for _ in (store.folder / "runs").glob("*.jsonl")):
        print(f"{there} runs are in {store.folder} already: only what is missing runs")
    compose = _composer(deployments, options.built or ROOT / "build" / options.deployment.stem)
    begin = time.monotonic()
    try:
        return run_level(
            level,
            compose,
            store,
            commit,
            lambda text: print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True),
        )
    except RuntimeError as error:
        raise SystemExit(f"no report without it: {error}") from None
    finally:
        if len(deployments) > 1:
            compose(PRODUCT)  # what is composed is the deployment again, and no variant


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
    if not options.deployment.is_file():
        parser.error(f"--deployment: {options.deployment} is no file")
    if options.accept and (options.arms or options.workloads):
        parser.error("--accept: only what a whole level measures can be accepted")
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
        once=() if options.arms else level.once,  # who asks for an arm wants all of it
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


def _composer(deployments: Mapping[str, Path], built: Path) -> Callable[[str], Path]:
    """Composes an arm's deployment into `built`; the artifacts stay the same, so that this takes a second."""
    from rich.console import Console  # noqa: PLC0415

    from client.serving.compose import compose  # noqa: PLC0415

    def of(arm: str) -> Path:
        compose(deployments.get(arm, deployments[PRODUCT]), built, Console(stderr=True), force=False)
        return built

    return of


if __name__ == "__main__":
    command.run(main)
