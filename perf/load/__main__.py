"""Replay a workload file against a running server.

python -m perf.load burst.jsonl --url grpc://localhost:8001 --output run.jsonl
python -m perf.load burst.jsonl --url http://localhost:8080 --model vlm
python -m perf.load burst.jsonl --url grpc://localhost:8001 --concurrency 8
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections import Counter
from pathlib import Path

import numpy as np

from perf import command
from perf.load import OK, Run, answered, closed_loop, open_loop, open_target
from perf.workloads import MODALITIES, load_workload


def main() -> int:
    """Run, save, print a line a class; 1 when nothing was answered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument(
        "--url",
        action="append",
        help="grpc://host:port (Triton) or http://host:port (OpenAI); repeat for a least-backlog router",
    )
    parser.add_argument("--model", default="vlm", help="its name at an http:// server")
    parser.add_argument("--concurrency", type=int, help="closed loop with so many in flight, instead of open loop")
    parser.add_argument("--output", type=Path, help="where the records go (JSON lines)")
    options = parser.parse_args()
    if options.concurrency is not None and options.concurrency < 1:
        parser.error("--concurrency must be at least 1")
    run = asyncio.run(_run(options))
    if options.output:
        run.save(options.output)
    failed = [record for record in run.records if record.outcome != OK]
    print(f"outcomes {dict(Counter(record.outcome for record in run.records))}, {run.tokens_per_s:.1f} tokens/s")
    print(f"load generator: {run.cpu_share:.1%} of a core, at most {run.worst_late_s * 1e3:.1f} ms late")
    if failed:
        print(f"first failure: {failed[0].error}")
    for modality in MODALITIES:
        if records := answered(run.records, modality):
            ttft = [record.ttft_s * 1e3 for record in records if record.ttft_s is not None] or [math.nan]
            gaps = [gap * 1e3 for record in records for gap in record.gaps_s] or [0.0]
            print(
                f"{modality:5} {len(records):5} requests, TTFT P50 {np.median(ttft):.0f} ms, max {max(ttft):.0f} ms; "
                f"gaps P50 {np.median(gaps):.0f} ms, max {max(gaps):.0f} ms"
            )
    return 1 if len(failed) == len(run.records) else 0


async def _run(options: argparse.Namespace) -> Run:
    requests = load_workload(options.workload).requests
    target = open_target(options.url or ["grpc://localhost:8001"], options.model)
    payloads = [target.prepare(request) for request in requests]
    try:
        if options.concurrency:
            return await closed_loop(requests, payloads, target, options.concurrency)
        return await open_loop(requests, payloads, target)
    finally:
        await target.close()


if __name__ == "__main__":
    command.run(main)
