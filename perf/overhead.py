"""What the product adds to the engine: the same requests in this process, and through Triton, router and client.

    python -m perf.overhead --built build/bench-cpu

Concurrency 1: TTFT of text. 32 streams: tokens a second. First in process, then through the product, twice in turn.
`--record py-spy` also records the router's stub with py-spy (which must be on PATH) into router.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from client.serving.ports import choose_ports
from client.serving.server import Server
from perf.in_process import InProcessLlm
from perf.load import GrpcTarget, Run, answered, closed_loop
from perf.workloads import Request
from perf.workloads.payload import prompt_text

STREAMS = 32
_PROMPT, _ANSWER = 32, 48  # tokens
_SINGLE = 12  # requests at concurrency 1
_TEMPLATE = 40  # tokens that the chat template adds to a prompt, about


@dataclass(frozen=True)
class Figures:
    """One side."""

    ttft_ms: float  # median at concurrency 1
    tokens_per_s: float  # at 32 streams


def in_process(artifacts: Path) -> Figures:
    """The engine alone."""
    llm = InProcessLlm(artifacts)
    alone = [llm.run([llm.random_prompt(_PROMPT + _TEMPLATE)], 4)[0].ttft_s for _ in range(_SINGLE)]
    begin = time.perf_counter()
    llm.run([llm.random_prompt(_PROMPT + _TEMPLATE) for _ in range(STREAMS)], _ANSWER)
    return Figures(float(np.median(alone)) * 1e3, STREAMS * _ANSWER / (time.perf_counter() - begin))


def served(url: str) -> Figures:
    """Through everything."""
    alone = asyncio.run(_drive(url, 1, _SINGLE, 4, seed=1))
    many = asyncio.run(_drive(url, STREAMS, STREAMS, _ANSWER, seed=2))
    ttft = [record.ttft_s for record in answered(alone.records) if record.ttft_s is not None]
    return Figures(float(np.median(ttft)) * 1e3, many.tokens_per_s)


async def _drive(url: str, concurrency: int, count: int, answer: int, seed: int) -> Run:
    target = GrpcTarget([url])
    requests = [
        Request(n, 0.0, "text", prompt_text(1000 * seed + n + time.time_ns(), _PROMPT), (), answer)
        for n in range(count)
    ]
    try:
        return await closed_loop(requests, [target.prepare(r) for r in requests], target, concurrency)
    finally:
        await target.close()


@contextmanager
def recording(tool: str | None, output: Path) -> Iterator[None]:
    """py-spy on the router's stub while the block runs."""
    if tool is None:
        yield
        return
    if shutil.which(tool) is None:
        raise SystemExit(f"{tool} is not on PATH: pip install {tool}")
    stubs = [p for p in psutil.process_iter(["cmdline"]) if _is_router(p.info["cmdline"] or [])]
    command = [tool, "record", "--pid", str(stubs[-1].pid), "--duration", "600", "--output", str(output)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _is_router(command: list[str]) -> bool:
    return bool(command) and "triton_python_backend_stub" in command[0] and any("/vlm/" in part for part in command)


def main() -> None:
    """Both sides, twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, default=Path("build/bench-cpu"), help="a composed deployment")
    parser.add_argument("--record", choices=["py-spy"])
    options = parser.parse_args()
    for turn in range(2):
        engine = in_process(options.built / "artifacts")
        ports = choose_ports("127.0.0.1")
        with Server(options.built, ports) as server, recording(options.record, Path(f"router-{turn}.svg")):
            product = served(server.endpoints.grpc)
        print(f"engine  TTFT {engine.ttft_ms:.1f} ms, {engine.tokens_per_s:.0f} tokens/s at {STREAMS} streams")
        print(f"product TTFT {product.ttft_ms:.1f} ms, {product.tokens_per_s:.0f} tokens/s at {STREAMS} streams")
        print(f"ratio TTFT above the engine, ms {product.ttft_ms - engine.ttft_ms:.1f}")
        print(f"ratio throughput product/engine {product.tokens_per_s / engine.tokens_per_s:.2f}")


if __name__ == "__main__":
    main()
