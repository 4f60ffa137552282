"""What a second request with the same beginning saves: time to first token, and prompt tokens found in the KV cache.

    python -m perf.prefix_reuse [--rounds 15] [--deployment deployments/demo-cpu.yaml] [--output build/prefix-reuse]

Pairs of requests, one at a time on an idle server: pictures never seen before and a question, then the same pictures
with another question; and the same with a system prompt. Medians, with the ratio of second to first.
"""

from __future__ import annotations

import argparse
import io
import statistics
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from client import VlmClient
from client.serving.compose import open_server
from client.serving.ports import choose_ports
from client.types import Answer

QUESTIONS = ("What is shown here?", "Which colours can be seen, and where are they?")
HITS = "tvlm_prefix_cache_hits_total"


@dataclass(frozen=True)
class Cost:
    """One request."""

    first_token_ms: float
    encode_ms: float
    prefill_ms: float


def cost(answer: Answer) -> Cost:
    """From the timing that the stages measured."""
    timing = answer.timing
    return Cost(timing.first_token_ms or 0.0, timing.encode_ms or 0.0, timing.prefill_ms or 0.0)


def fresh_pictures(rng: np.random.Generator, count: int) -> list[bytes]:
    """Pictures that nobody has seen."""
    files = []
    for _ in range(count):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (256, 256, 3), np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


def hits(metrics_url: str) -> float:
    """Prompt tokens found in the KV cache so far."""
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return sum(s.value for family in families for s in family.samples if s.name == HITS)


def report(name: str, pairs: Sequence[tuple[Cost, Cost]], found: float) -> None:
    """One row."""
    cells = []
    for field in ("first_token_ms", "encode_ms", "prefill_ms"):
        first, second = (statistics.median(getattr(pair[i], field) for pair in pairs) for i in (0, 1))
        cells.append(f"{first:.0f} / {second:.0f}" + (f" ({second / first:.2f})" if first else ""))
    print(f"| {name} | {' | '.join(cells)} | {found / len(pairs):.0f} |")


def main() -> None:
    """Compose, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--deployment", type=Path, default=Path("deployments/demo-cpu.yaml"))
    parser.add_argument("--output", type=Path, default=Path("build/prefix-reuse"))
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    server = open_server(options.deployment, options.output, Console(), choose_ports("127.0.0.1"))
    with server, VlmClient(server.endpoints.grpc) as vlm:

        def ask_about(count: int) -> Callable[[], tuple[Cost, Cost]]:
            def pair() -> tuple[Cost, Cost]:
                images = fresh_pictures(rng, count)
                first, second = (vlm.generate(question, images=images, max_tokens=2) for question in QUESTIONS)
                return cost(first), cost(second)

            return pair

        def ask_system() -> tuple[Cost, Cost]:
            rules = " ".join(f"Rule {i}: say {rng.integers(10**6)}." for i in range(40))
            system = {"role": "system", "content": rules}
            messages = [[system, {"role": "user", "content": question}] for question in QUESTIONS]
            first, second = (vlm.generate(messages=each, max_tokens=2) for each in messages)
            return cost(first), cost(second)

        print("| first request / the second one | TTFT, ms | encode, ms | prefill, ms | KV tokens reused by both |")
        print("|---|---|---|---|---|")
        cases = {"1 picture": ask_about(1), "4 pictures": ask_about(4), "system prompt": ask_system}
        for name, pair in cases.items():
            pair()
            before = hits(server.endpoints.metrics)
            pairs = [pair() for _ in range(options.rounds)]
            report(name, pairs, hits(server.endpoints.metrics) - before)


if __name__ == "__main__":
    main()
