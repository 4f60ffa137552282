"""Where more concurrency stops to bring throughput, against a running server.

    python -m perf.knee --url grpc://localhost:8001
    python -m perf.knee --url grpc://localhost:8001 --write deployments/bench-cpu.yaml

Closed loop, text of one length (32 tokens and the template, answers of 32), so that all in flight end together and
the last ones do not run in a half-empty server.
The knee is the smallest concurrency with 95 % of the best throughput; --write puts 80 % of it into the deployment file
as pools.text.max_running, which is what the scheduler lets run at a time. Where the most that was tried is still the
best, there is no knee to be seen, and nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path

from perf import command
from perf.load import OK, closed_loop, open_target
from perf.workloads import Request
from perf.workloads.payload import prompt_text

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
_ENOUGH = 0.95
_TOKENS = 32  # of every prompt, and of every answer
SHARE = 0.8


def knee(throughput: Mapping[int, float]) -> int | None:
    """The smallest concurrency that has almost the best throughput; None where it rises to the last."""
    best = max(throughput.values())
    found = min(concurrency for concurrency, value in throughput.items() if value >= _ENOUGH * best)
    return found if found < max(throughput) else None


def with_max_running(text: str, running: int) -> str:
    """The deployment file's text with another pools.text.max_running; comments stay (ValueError: no such line)."""
    changed, count = re.subn(r"(?m)^(\s+max_running:\s*)\d+", rf"\g<1>{running}", text)
    if count != 1:
        raise ValueError("the deployment file has no line `max_running: ...` under pools.text; add one")
    return changed


async def measure(url: str, requests: int) -> dict[int, float]:
    """Output tokens a second by concurrency, text only."""
    found: dict[int, float] = {}
    for concurrency in (1, *CONCURRENCIES):  # the first time to warm it up
        count = concurrency * max(2, round(requests / concurrency))
        texts = [prompt_text(n + time.time_ns(), _TOKENS) for n in range(count)]
        asked = [Request(n, 0.0, "text", text, (), _TOKENS) for n, text in enumerate(texts)]
        target = open_target([url])
        run = await closed_loop(asked, [target.prepare(request) for request in asked], target, concurrency)
        await target.close()
        if failed := [record for record in run.records if record.outcome != OK]:
            raise SystemExit(f"{concurrency} in flight: {len(failed)} of {count} failed: {failed[0].error}")
        found[concurrency] = run.tokens_per_s
        print(f"{concurrency:4} in flight: {run.tokens_per_s:7.1f} tokens/s", flush=True)
    return found


def main() -> None:
    """Measure, print, write on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="grpc://localhost:8001")
    parser.add_argument("--requests", type=int, default=24, help="at each concurrency, at least")
    parser.add_argument("--write", type=Path, help="deployment file to change")
    options = parser.parse_args()
    found = knee(asyncio.run(measure(options.url, options.requests)))
    if found is None:
        raise SystemExit(
            f"no knee: throughput rises up to {CONCURRENCIES[-1]} in flight; more can't run at a time than "
            "pools.text.max_running, so raise that first if memory allows"
        )
    running = max(1, int(SHARE * found))
    print(f"knee {found}; {SHARE:.0%} of it: max_running: {running}")
    if options.write:
        options.write.write_text(with_max_running(options.write.read_text(), running))


if __name__ == "__main__":
    command.run(main)
