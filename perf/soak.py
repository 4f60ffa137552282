"""Thousands of requests, some of them cancelled at a random point: what grows.

    python -m perf.soak [--requests 5000] [--cancelled 0.1] [--rounds 10] [--engine real|fake]

After every round the server is left until nothing runs, then measured. The first half fills what has a fixed size (the
embedding pool, thread pools, allocators); what is held at the end is compared with what was held after it. Exits with 1
when something has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from client import AsyncVlmClient, RetryPolicy, VlmError
from perf.bench_server import add_mix_options, add_options, fresh_server
from perf.idle import wait_until_idle
from perf.mix import Ask, mix
from perf.processes import Held, held

# what may differ between two idle moments of a server that does not grow
MEMORY_SHARE, FILES, THREADS = 0.05, 8, 4


async def ask_all(url: str, asks: Sequence[Ask], clients: int, cancelled: float, rng: random.Random) -> Counter[str]:
    """All requests, so many at a time; counts their outcomes."""
    outcomes: Counter[str] = Counter()
    left = iter(asks)

    async def client() -> None:
        async with AsyncVlmClient(url, retry=RetryPolicy(attempts=1)) as vlm:
            for ask in left:
                try:
                    outcomes[await _ask(vlm, ask, rng.random() < cancelled, rng)] += 1
                except VlmError as error:
                    outcomes[f"{error.status}: {error.message}"] += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes


async def _ask(vlm: AsyncVlmClient, ask: Ask, cancel: bool, rng: random.Random) -> str:
    tokens = rng.randint(1, 8)
    images = [ask.image] if ask.image else []
    stream = vlm.stream(ask.text, images, max_tokens=64 if cancel else tokens, ignore_eos=True, timeout_s=120)

    async def follow() -> None:
        async for _ in stream:
            pass

    if not cancel:
        await follow()
        return "answered"
    try:  # anywhere: before it is admitted, while it is encoded, in prefill, between two tokens
        await asyncio.wait_for(follow(), rng.uniform(0.0, 0.5))
    except asyncio.TimeoutError:
        await stream.aclose()
        return "cancelled"
    return "answered before it could be cancelled"


def growth(first: Held, last: Held) -> list[str]:
    """What is held more at the end than after the first half, beyond what two idle moments may differ by."""
    grown = []
    if last.memory_mb > first.memory_mb * (1 + MEMORY_SHARE):
        grown.append(f"memory from {first.memory_mb:.0f} to {last.memory_mb:.0f} MB")
    for name, slack in (("files", FILES), ("threads", THREADS), ("processes", 0), ("shm_files", 0)):
        was, now = getattr(first, name), getattr(last, name)
        if now > was + slack:
            grown.append(f"{name} from {was} to {now}")
    if last.shm_mb > first.shm_mb * (1 + MEMORY_SHARE) + 1:
        grown.append(f"/dev/shm from {first.shm_mb:.0f} to {last.shm_mb:.0f} MB")
    return grown


def main() -> None:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    add_mix_options(parser, requests=5000, image_share=0.3, clients=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cancelled", type=float, default=0.1)
    options = parser.parse_args()
    asks = list(mix(options.requests, options.image_share, options.seed))
    size = -(-options.requests // options.rounds)
    rng = random.Random(options.seed)
    moments: list[Held] = []
    wrong: list[str] = []
    with fresh_server(options) as server:
        url = server.endpoints.grpc
        for number in range(options.rounds):
            begin = time.monotonic()
            part = asks[number * size : (number + 1) * size]
            outcomes = asyncio.run(ask_all(url, part, options.clients, options.cancelled, rng))
            seconds = time.monotonic() - begin
            left = {name: value for name, value in wait_until_idle(server.endpoints).items() if value}
            if left:
                wrong.append(f"round {number}: left behind {left}")
            moments.append(held())
            print(f"{(number + 1) * size:6} requests, {seconds:4.0f} s: {moments[-1]}  {dict(outcomes)}", flush=True)
    wrong += growth(moments[(len(moments) - 1) // 2], moments[-1])
    print("\n".join(f"WRONG: {sentence}" for sentence in wrong) or "nothing has grown")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
