"""A burst of 64 pictures in 16 requests while text comes at 1.5 requests a second: who pays for it.

    python -m perf.interference [--arrangements monolith,fcfs,served,faster] [--seconds 60] [--output FOLDER]
    python -m perf.interference --arrangements served --set pools.vision.cpu_share=0.3 --set scheduler.tbt_slo_ms=150

Every arrangement runs the same text twice: alone, and with the burst in its midst.
`monolith`: pictures encoded in the token loop of one process. `fcfs`: this product, policy fcfs without budgets.
`served`: this product as deployments/bench-cpu.yaml says; `faster`: with a longer time between tokens.
Make the checkpoint first: python -m perf.bench_checkpoint
Results go to OUTPUT/results.jsonl, one line a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from client.serving.compose import compose, open_server
from client.serving.ports import choose_ports
from perf import command
from perf.deployments import changed, parse_changes
from perf.interference.served import send
from perf.interference.workload import Seen, Summary, requests, summary

DEPLOYMENT = Path(__file__).resolve().parents[2] / "deployments" / "bench-cpu.yaml"
WHOLE_PROMPTS = {"pools.text.prefill_tokens": 256, "pools.text.prefill_slice_tokens": 0}
ARRANGEMENTS: Mapping[str, Mapping[str, Any]] = {
    "monolith": WHOLE_PROMPTS,
    "fcfs": {
        **WHOLE_PROMPTS,
        "scheduler.policy": "fcfs",
        "scheduler.budgets": False,
        "pools.vision.nice": 0,
        "pools.vision.cpu_share": 1,
    },
    "served": {},
    "faster": {"scheduler.tbt_slo_ms": 140},
}


def run_monolith(deployment: Path, output: Path, seconds: float, burst: bool) -> list[Seen]:
    """In a process of its own, on the artifacts of the composed deployment."""
    compose(deployment, output, Console(stderr=True), force=False)
    job = {"artifacts": str(output / "artifacts"), "seconds": seconds, "burst": burst}
    command = [sys.executable, "-m", "perf.interference.monolith"]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [Seen(**values) for values in json.loads(done.stdout)]


def run_served(deployment: Path, output: Path, seconds: float) -> tuple[list[Seen], list[Seen]]:
    """Alone and with the burst, on one server."""
    with open_server(deployment, output, Console(stderr=True), choose_ports("127.0.0.1")) as server:
        url = server.endpoints.grpc
        return (
            asyncio.run(send(url, requests(seconds, burst=False))),
            asyncio.run(send(url, requests(seconds, burst=True))),
        )


def report(name: str, alone: Summary, burst: Summary, monolith: Summary | None) -> None:
    """Two lines of figures, and what is asked of them."""
    ratio = burst.text_ttft_p99 / alone.text_ttft_p99
    verdict = f"text P99 x {ratio:.1f} (asked: 3), longest gap {burst.longest_gap:.0f} ms (200)"
    if monolith is not None:
        verdict += f", picture P99 x {burst.image_p99 / monolith.image_p99:.2f} of the monolith's (1.5)"
    if alone.errors or burst.errors or (monolith is not None and monolith.errors):
        verdict = "no verdict: those that failed are in no figure"
    print(f"{name}\n  alone      {alone}\n  with burst {burst}\n  {verdict}", flush=True)


def main() -> None:
    """Run all, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrangements", default="monolith,fcfs,served,faster")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long text comes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the deployment")
    parser.add_argument("--output", type=Path, default=Path("build/interference"))
    options = parser.parse_args()
    asked = parse_changes(options.set)
    monolith: Summary | None = None
    for name in options.arrangements.split(","):
        changes = {**ARRANGEMENTS[name], **asked}
        deployment = changed(DEPLOYMENT, changes, options.output / f"{name}.yaml")
        folder = options.output / "composed"
        if name == "monolith":
            alone, burst = (run_monolith(deployment, folder, options.seconds, burst) for burst in (False, True))
        else:
            alone, burst = run_served(deployment, folder, options.seconds)
        figures = [
            summary(requests(options.seconds, with_burst), seen) for with_burst, seen in ((False, alone), (True, burst))
        ]
        if name == "monolith":
            monolith = figures[1]
        report(name, figures[0], figures[1], monolith)
        with (options.output / "results.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, "set": changes, "alone": vars(figures[0]), "burst": vars(figures[1])}))
            file.write("\n")


if __name__ == "__main__":
    command.run(main)
