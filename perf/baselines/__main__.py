"""Serve one baseline over gRPC, in the place of the product.

    python -m perf.baselines monolith --artifacts build/bench-cpu/artifacts --port 9001

    monolith     encode in the token loop, first come first served, all cores
    text-first   the same with small requests first, aging, and one picture at a time while text runs
    split-cores  encoder and LLM in two processes, half of the cores each
    split-equal  encoder and LLM in two processes, all cores each, equal priority
    split-nice   the same with the encoder at nice 15

`--cores 0` pins the whole baseline; two of `monolith` with one core each make a data-parallel pair.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from perf import command

if TYPE_CHECKING:
    from perf.baselines.service import VlmService

ARRANGEMENTS = ("monolith", "text-first", "split-cores", "split-equal", "split-nice")
_NICE = 15


def main() -> None:
    """Load, then serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arrangement", choices=ARRANGEMENTS)
    parser.add_argument("--artifacts", type=Path, required=True, help="folder `artifacts` of a composed deployment")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cores", help="such as 0 or 0,1; default: all that this process may use")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0)) if options.cores is None else [int(c) for c in options.cores.split(",")]
    os.sched_setaffinity(0, cores)  # before OpenVINO counts them
    with contextlib.suppress(KeyboardInterrupt):
        _serve(options.arrangement, options.artifacts, options.port, cores)


def _serve(arrangement: str, artifacts: Path, port: int, cores: list[int]) -> None:
    from perf.baselines.encoders import Encoder, InlineEncoder, ProcessEncoder  # noqa: PLC0415
    from perf.baselines.loop import TokenLoop, load_llm  # noqa: PLC0415
    from perf.baselines.service import VlmService  # noqa: PLC0415

    llm_cores = cores
    encoder: Encoder
    if arrangement in ("monolith", "text-first"):
        encoder = InlineEncoder(artifacts, len(cores))
    elif arrangement == "split-cores":
        half = max(1, len(cores) // 2)
        llm_cores = cores[:half]
        encoder = ProcessEncoder(artifacts, len(cores[half:]) or 1, cores[half:] or cores, 0)
        os.sched_setaffinity(0, llm_cores)
    else:
        encoder = ProcessEncoder(artifacts, len(cores), cores, _NICE if arrangement == "split-nice" else 0)
    policy = "text_first" if arrangement == "text-first" else "fcfs"
    loop = TokenLoop(load_llm(artifacts, len(llm_cores)), encoder, policy)
    asyncio.run(_answer(VlmService(artifacts, loop, len(llm_cores)), port))


async def _answer(service: VlmService, port: int) -> None:
    from perf.baselines.service import start  # noqa: PLC0415

    server, _ = await start(service, port)
    await server.wait_for_termination()


if __name__ == "__main__":
    command.run(main)
