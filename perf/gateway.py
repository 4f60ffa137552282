"""What the gateway costs: time to first token and token rate through it, against gRPC direct, in one run.

    python -m perf.gateway
    python -m perf.gateway --engine fake --step-ms 0 --requests 300 --rounds 0

Starts the composed deployment and a gateway; both are asked the same messages in turns, so that what else the machine
does meets both. Time outside the router is what remains of the time to first token without the router's own
(`timing.first_token_ms`), request by request: the engine's steps, which vary by more than the gateway costs, are not in
it. The fake engine answers at once and takes no CPU, so that the rest shows; its token rate is more than two cores can
carry through two servers, hence `--rounds 0`. Differences of medians have their 95 % bootstrap interval in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from client import AsyncVlmClient
from client.serving.gateway import GatewayProcess
from perf.bench_server import add_options, fresh_server
from perf.statistics import median_difference

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "circle.png"
QUESTION = "Tell me a long story about a fox."


@dataclass(frozen=True)
class Seen:
    """One answer, from the client's side."""

    first_ms: float  # to the first piece
    router_ms: float  # of which the router's own
    tokens: int


Ask = Callable[[int], Awaitable[Seen]]  # tokens wanted


def direct(vlm: AsyncVlmClient, pictures: Sequence[bytes]) -> Ask:
    """Ask the model over gRPC, with the messages that the gateway sends."""
    parts = [*({"type": "image"} for _ in pictures), {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": parts}]

    async def ask(tokens: int) -> Seen:
        begin, first = time.perf_counter(), 0.0
        stream = vlm.stream(images=pictures, messages=messages, max_tokens=tokens, ignore_eos=True)
        async for _ in stream:
            first = first or time.perf_counter() - begin
        answer = stream.answer
        return Seen(first * 1e3, answer.timing.first_token_ms or 0.0, answer.usage.num_output_tokens or 0)

    return ask


def through(session: aiohttp.ClientSession, url: str, pictures: Sequence[bytes]) -> Ask:
    """Ask the gateway, over a kept connection as OpenAI's client has it."""
    urls = [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in pictures]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]

    async def ask(tokens: int) -> Seen:
        body: dict[str, Any] = {
            "model": "vlm",
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begin, first, last = time.perf_counter(), 0.0, b""
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not first and b'"content":"' in line and b'"content":""' not in line:
                    first = time.perf_counter() - begin
                if b'"completion_tokens":' in line:
                    last = line
        figures = json.loads(last.removeprefix(b"data: "))
        return Seen(first * 1e3, figures["timing"]["first_token_ms"], figures["usage"]["completion_tokens"])

    return ask


async def first_tokens(ways: dict[str, Ask], requests: int) -> dict[str, list[Seen]]:
    """Answers at concurrency 1, by way; one request of each in turn, which goes first alternates."""
    seen: dict[str, list[Seen]] = {name: [] for name in ways}
    for number in range(requests):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            seen[name].append(await ways[name](4))
    return seen


def report_first_tokens(what: str, seen: dict[str, list[Seen]]) -> None:
    """Print the medians of both ways, and what the gateway adds."""
    parts: dict[str, Callable[[Seen], float]] = {
        "TTFT": lambda answer: answer.first_ms,
        "the router's own": lambda answer: answer.router_ms,
        "outside the router": lambda answer: answer.first_ms - answer.router_ms,
    }
    print(f"{what}, medians of {len(seen['direct'])}:")
    for part, of in parts.items():
        direct, gateway = (np.array([of(answer) for answer in seen[name]]) for name in ("direct", "gateway"))
        print(
            f"  {part:18} direct {np.median(direct):6.2f} ms, gateway {np.median(gateway):6.2f} ms, "
            f"added {median_difference(gateway, direct)} ms",
            flush=True,
        )


async def token_rates(ways: dict[str, Ask], streams: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Tokens a second over all streams, by way and round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            begin = time.perf_counter()
            answered = await asyncio.gather(*(ways[name](tokens) for _ in range(streams)))
            rates[name].append(sum(answer.tokens for answer in answered) / (time.perf_counter() - begin))
    return rates


async def measure(grpc: str, url: str, options: argparse.Namespace) -> None:
    """Ask both ways and print."""
    async with (
        AsyncVlmClient(grpc) as vlm,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        for what, pictures in (("picture", [PICTURE.read_bytes()]), ("text", [])):
            ways = {"direct": direct(vlm, pictures), "gateway": through(session, url, pictures)}
            await first_tokens(ways, 5)  # warm-up
            report_first_tokens(what, await first_tokens(ways, options.requests))
        if options.rounds == 0:
            return
        await token_rates(ways, options.streams, 8, 1)  # warm-up
        rates = await token_rates(ways, options.streams, options.tokens, options.rounds)
    for name, values in rates.items():
        print(f"{name}: " + ", ".join(f"{rate:.0f}" for rate in values) + f" tokens/s at {options.streams} streams")
    ratio = statistics.median(rates["gateway"]) / statistics.median(rates["direct"])
    print(f"gateway keeps {ratio:.1%} of the direct token rate (medians of {options.rounds} rounds)")


def main() -> None:
    """Start, measure, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--requests", type=int, default=60, help="for the time to first token")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--rounds", type=int, default=4, help="of the token rate")
    options = parser.parse_args()
    server = fresh_server(options)
    with server, GatewayProcess(options.output, server.endpoints.grpc) as gateway:
        asyncio.run(measure(server.endpoints.grpc, gateway.url, options))


if __name__ == "__main__":
    main()
