"""Requests while processes of the server are killed: what clients get, and what is left behind.

    python -m perf.chaos [--requests 300] [--every-s 5] [--victims workers|all] [--engine real|fake]

The same requests are answered twice, greedily: undisturbed, then with a random worker (with --victims all: or stub)
killed or stopped every few seconds. Every request must end with a whole answer or one clear error before its deadline;
answers must be equal to those of the undisturbed run; afterwards nothing may be left running. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from client import AsyncVlmClient, RetryPolicy, VlmError
from client.serving.server import Server
from perf.bench_server import add_mix_options, add_options, fresh_server, watched
from perf.idle import samples, total, wait_until_idle
from perf.mix import Ask, mix
from perf.processes import held, stubs, workers

TOKENS = 12
PAUSE_S = 2.0  # after an error: a server that restarts refuses all that comes at once
GRACE_S = 5.0  # a client's own limit, beyond the deadline that the server is told


@dataclass(frozen=True)
class End:
    """How one request ended."""

    text: str | None
    error: str | None
    seconds: float


async def ask_all(url: str, asks: Sequence[Ask], clients: int, deadline_s: float) -> list[End]:
    """All requests in order, so many at a time; each is sent once."""
    ends: list[End | None] = [None] * len(asks)
    numbers = iter(range(len(asks)))

    async def client() -> None:
        async with AsyncVlmClient(url, retry=RetryPolicy(attempts=1)) as vlm:
            for number in numbers:
                end = ends[number] = await _ask(vlm, asks[number], deadline_s)
                if end.error is not None:
                    await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(client() for _ in range(clients)))
    return [end for end in ends if end is not None]


async def _ask(vlm: AsyncVlmClient, ask: Ask, deadline_s: float) -> End:
    begin = time.monotonic()
    text, error = "", None
    options = {"max_tokens": TOKENS, "ignore_eos": True, "deadline_ms": int(deadline_s * 1e3)}
    try:
        images = [ask.image] if ask.image else []
        async for piece in vlm.stream(ask.text, images, timeout_s=deadline_s + GRACE_S, **options):
            text += piece
    except VlmError as failure:
        error = f"{failure.status}: {failure.message}"
    return End(text if error is None else None, error, time.monotonic() - begin)


@contextlib.contextmanager
def killing(every_s: float, victims: str, seed: int) -> Iterator[Counter[str]]:
    """Something dies every `every_s` while inside; counts the blows by process and signal."""
    blows: Counter[str] = Counter()
    over = threading.Event()

    def run() -> None:
        rng = random.Random(seed)
        while not over.wait(every_s):
            targets = {f"worker of {model}": process for model, process in workers().items()}
            if victims == "all":
                targets |= {f"stub of {model}": process for model, process in stubs().items()}
            if not targets:
                continue
            name = rng.choice(sorted(targets))
            blow = rng.choice((signal.SIGKILL, signal.SIGSTOP))
            with contextlib.suppress(psutil.Error):
                targets[name].send_signal(blow)
                blows[f"{name}: {blow.name}"] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield blows
    finally:
        over.set()
        thread.join()


def judge(ends: Sequence[End], calm: Sequence[End], deadline_s: float) -> list[str]:
    """What went against the rules, a sentence each."""
    hung = [n for n, end in enumerate(ends) if end.seconds > deadline_s + GRACE_S / 2]
    other = [n for n, (end, quiet) in enumerate(zip(ends, calm, strict=True)) if end.text not in (None, quiet.text)]
    unclear = [end.error for end in ends if end.error and not end.error.startswith("UNAVAILABLE")]
    wrong = []
    if hung:
        wrong.append(f"{len(hung)} requests ended later than their deadline: {hung[:10]}")
    if other:
        wrong.append(f"{len(other)} answers differ from the undisturbed run: {other[:10]}")
    if unclear:
        wrong.append(f"{len(unclear)} errors are not UNAVAILABLE, the first: {unclear[0]}")
    return wrong


def settle(server: Server) -> list[str]:
    """What is still in the server although all requests have ended."""
    left = {name: value for name, value in wait_until_idle(server.endpoints).items() if value}
    return [f"left behind: {left}"] if left else []


def main() -> None:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    add_mix_options(parser, requests=300, image_share=0.4, clients=8)
    parser.add_argument("--every-s", type=float, default=5.0)
    parser.add_argument("--victims", choices=("workers", "all"), default="workers")
    parser.add_argument("--deadline-s", type=float, default=60.0)
    options = parser.parse_args()
    asks = list(mix(options.requests, options.image_share, options.seed))
    with fresh_server(options) as server:
        calm = asyncio.run(ask_all(server.endpoints.grpc, asks, options.clients, options.deadline_s))
    failed = [end.error for end in calm if end.error]
    print(f"undisturbed: {len(calm) - len(failed)} of {len(calm)} answered {failed[:1]}")
    with watched(fresh_server(options)) as server:
        before = held()
        begin = time.monotonic()
        with killing(options.every_s, options.victims, options.seed) as blows:
            ends = asyncio.run(ask_all(server.endpoints.grpc, asks, options.clients, options.deadline_s))
        seconds = time.monotonic() - begin
        wrong = judge(ends, calm, options.deadline_s) + settle(server)
        after = held()
        retries = total(samples(server.endpoints), "tvlm_retries_total")
    errors = Counter(end.error for end in ends if end.error)
    print(f"disturbed:   {sum(end.text is not None for end in ends)} of {len(ends)} answered in {seconds:.0f} s")
    print(f"{sum(blows.values())} blows: {dict(blows)}; {retries:.0f} retries")
    print(f"slowest {max(end.seconds for end in ends):.1f} s of a deadline of {options.deadline_s:g} s")
    for error, count in errors.most_common():
        print(f"  {count:3} x {error}")
    print(f"before {before}\nafter  {after}")
    print("\n".join(f"WRONG: {sentence}" for sentence in wrong) or "all rules held")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
