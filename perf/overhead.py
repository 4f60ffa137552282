"""What the product adds to the engine: the same requests in this process, and through Triton, router and client.

    python -m perf.overhead --built build/bench-cpu

Concurrency 1: TTFT of text. 32 streams: tokens a second. Through the product first, then in process with prompts of as
many tokens; in turns, as the machine drifts. `--record py-spy` also records the router's stub with py-spy (which must
be on PATH) into router-TURN.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
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
from perf import command
from perf.in_process import InProcessLlm
from perf.load import Run, answered, closed_loop, open_target
from perf.statistics import Values, median_difference
from perf.workloads import Request
from perf.workloads.payload import prompt_text

STREAMS = 32
_PROMPT, _ANSWER = 32, 48  # tokens, the chat template's excepted
_ALONE_ANSWER = 4


@dataclass(frozen=True)
class Figures:
    """One side in one turn."""

    ttft_ms: Values  # at concurrency 1
    tokens_per_s: float  # at 32 streams


def in_process(artifacts: Path, prompt_tokens: int, samples: int) -> Figures:
    """The engine alone."""
    llm = InProcessLlm(artifacts)
    llm.run([llm.random_prompt(prompt_tokens)], _ALONE_ANSWER)  # warm
    alone = [llm.run([llm.random_prompt(prompt_tokens)], _ALONE_ANSWER)[0].ttft_s for _ in range(samples)]
    begin = time.perf_counter()
    llm.run([llm.random_prompt(prompt_tokens) for _ in range(STREAMS)], _ANSWER)
    return Figures(np.array(alone) * 1e3, STREAMS * _ANSWER / (time.perf_counter() - begin))


def served(url: str, samples: int) -> tuple[Figures, int]:
    """Through everything; also the prompt's length as the server counts it (tokens)."""
    asyncio.run(_drive(url, 1, 1, _ALONE_ANSWER))  # warm
    alone = answered(asyncio.run(_drive(url, 1, samples, _ALONE_ANSWER)).records)
    many = asyncio.run(_drive(url, STREAMS, STREAMS, _ANSWER))
    if len(alone) < samples or len(answered(many.records)) < STREAMS:
        raise SystemExit(f"the product refused or failed requests: {[r.error for r in many.records if r.error][:1]}")
    ttft = [record.ttft_s * 1e3 for record in alone if record.ttft_s is not None]
    tokens = int(np.median([record.input_tokens or 0 for record in alone]))
    return Figures(np.array(ttft), many.tokens_per_s), tokens


async def _drive(url: str, concurrency: int, count: int, answer: int) -> Run:
    target = open_target([url])
    requests = [Request(n, 0.0, "text", prompt_text(n + time.time_ns(), _PROMPT), (), answer) for n in range(count)]
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
    output.unlink(missing_ok=True)
    command = [tool, "record", "--pid", str(stubs[-1].pid), "--duration", "600", "--output", str(output)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)  # it writes at Ctrl-C, and not at SIGTERM
        process.wait()
    if not output.exists():
        raise SystemExit(f"{tool} wrote no {output}; may it trace other processes (ptrace)?")


def _is_router(command: list[str]) -> bool:
    return bool(command) and "triton_python_backend_stub" in command[0] and any("/vlm/" in part for part in command)


def main() -> None:
    """Both sides, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, default=Path("build/bench-cpu"), help="a composed deployment")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--samples", type=int, default=20, help="requests at concurrency 1 in each turn")
    parser.add_argument("--record", choices=["py-spy"])
    options = parser.parse_args()
    engines, products = [], []
    for turn in range(options.turns):
        ports, picture = choose_ports("127.0.0.1"), Path(f"router-{turn}.svg")
        with Server(options.built, ports) as server, recording(options.record, picture):
            product, tokens = served(server.endpoints.grpc, options.samples)
        engine = in_process(options.built / "artifacts", tokens, options.samples)
        for name, side in (("product", product), ("engine", engine)):
            ttft, rate = np.median(side.ttft_ms), side.tokens_per_s
            print(
                f"{name:7} TTFT P50 {ttft:.1f} ms ({tokens} tokens), {rate:.0f} tokens/s at {STREAMS} streams",
                flush=True,
            )
        engines.append(engine)
        products.append(product)
    served_ms, alone_ms = (np.concatenate([side.ttft_ms for side in sides]) for sides in (products, engines))
    above = median_difference(served_ms, alone_ms)
    rates = [a.tokens_per_s / b.tokens_per_s for a, b in zip(products, engines, strict=True)]
    turns = ", ".join(f"{rate:.2f}" for rate in rates)
    print(f"ratio TTFT above the engine, ms {above} n={options.turns * options.samples} (asked: at most 3)")
    print(f"ratio throughput product/engine {np.median(rates):.2f} (turns: {turns}; asked: at least 0.92)")


if __name__ == "__main__":
    command.run(main)
