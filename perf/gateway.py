"""What the gateway costs: time to first token and token rate through it, against gRPC direct, in one run.

    python -m perf.gateway --output build/demo-cpu

Starts the composed deployment and a gateway; both are asked in turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from client import AsyncVlmClient
from client.serving.gateway import GatewayProcess
from client.serving.ports import choose_ports
from client.serving.server import Server

QUESTION = "Tell me a long story about a fox."
_HOST = "127.0.0.1"

Ask = Callable[[int], Awaitable[tuple[float, int]]]  # tokens wanted -> seconds to the first piece, tokens answered


def direct(vlm: AsyncVlmClient) -> Ask:
    """Ask the model over gRPC."""

    async def ask(tokens: int) -> tuple[float, int]:
        begin, first = time.perf_counter(), 0.0
        stream = vlm.stream(QUESTION, max_tokens=tokens, ignore_eos=True)
        async for _ in stream:
            first = first or time.perf_counter() - begin
        return first, stream.answer.usage.num_output_tokens or 0

    return ask


def through(session: aiohttp.ClientSession, url: str) -> Ask:
    """Ask the gateway, over a kept connection as OpenAI's client has it."""

    async def ask(tokens: int) -> tuple[float, int]:
        body: dict[str, Any] = {
            "model": "vlm",
            "messages": [{"role": "user", "content": QUESTION}],
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
        return first, int(last.split(b'"completion_tokens":')[1].split(b",")[0])

    return ask


async def first_token_ms(ways: dict[str, Ask], requests: int) -> dict[str, float]:
    """Median time to first token at concurrency 1, by way; one request of each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(requests):
        for name, ask in ways.items():
            seconds[name].append((await ask(4))[0])
    return {name: statistics.median(values) * 1e3 for name, values in seconds.items()}


async def token_rates(ways: dict[str, Ask], streams: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Tokens a second over all streams, by way and round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            begin = time.perf_counter()
            answered = await asyncio.gather(*(ways[name](tokens) for _ in range(streams)))
            rates[name].append(sum(count for _, count in answered) / (time.perf_counter() - begin))
    return rates


async def measure(grpc: str, url: str, options: argparse.Namespace) -> None:
    """Ask both ways and print."""
    async with (
        AsyncVlmClient(grpc) as vlm,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        ways = {"direct": direct(vlm), "gateway": through(session, url)}
        await first_token_ms(ways, 5)  # warm-up
        ttft = await first_token_ms(ways, options.requests)
        added = ttft["gateway"] - ttft["direct"]
        print(
            f"TTFT median of {options.requests}: direct {ttft['direct']:.2f} ms, gateway {ttft['gateway']:.2f} ms",
            flush=True,
        )
        print(f"added by the gateway: {added:.2f} ms", flush=True)
        await token_rates(ways, options.streams, 8, 1)  # warm-up
        rates = await token_rates(ways, options.streams, options.tokens, options.rounds)
    for name, values in rates.items():
        print(f"{name}: " + ", ".join(f"{rate:.0f}" for rate in values) + f" tokens/s at {options.streams} streams")
    ratio = statistics.median(rates["gateway"]) / statistics.median(rates["direct"])
    print(f"gateway keeps {ratio:.1%} of the direct token rate (medians of {options.rounds} rounds)")


def main() -> None:
    """Start, measure, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="composed deployment (tvlm build)")
    parser.add_argument("--requests", type=int, default=60, help="for the time to first token")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    server = Server(options.output, choose_ports(_HOST), _HOST)
    with server, GatewayProcess(options.output, server.endpoints.grpc) as gateway:
        asyncio.run(measure(server.endpoints.grpc, gateway.url, options))


if __name__ == "__main__":
    main()
