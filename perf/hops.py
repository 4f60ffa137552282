"""What one request costs each process of the server when nothing else runs: CPU time, and how often its threads wake.

    python -m perf.hops --built build/demo-cpu
    python -m perf.hops --built build/bench-cpu --requests 50

One request at a time, text and then one picture each, all new. A thread that waits and is woken is a voluntary context
switch (proc(5)), so wake-ups count the hops between processes and threads; tritonserver's and the engines' own pools
are in them. The answer has one token, so that relaying more of them is not in the figures (`python -m perf.relay`).
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from client.serving.ports import choose_ports
from client.serving.server import Server
from perf import command, processes
from perf.load import closed_loop, open_target
from perf.workloads import Picture, Request
from perf.workloads.payload import prompt_text

_PROMPT_TOKENS = 32
_SIDE = 224  # of a picture
_WOKEN = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """So far, or of one request."""

    cpu_ms: float
    wake_ups: float

    def since(self, before: Cost, requests: int) -> Cost:
        """Of one of so many requests."""
        return Cost((self.cpu_ms - before.cpu_ms) / requests, (self.wake_ups - before.wake_ups) / requests)


def cost(process: psutil.Process) -> Cost:
    """So far, over all its threads that live (psutil's own count is the main thread's)."""
    times = process.cpu_times()
    woken = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        found = _WOKEN.search(status.read_text())
        woken += int(found[1]) if found else 0
    return Cost((times.user + times.system) * 1e3, woken)


def parts() -> dict[str, psutil.Process]:
    """This process, tritonserver, and every stub and worker that there is."""
    stubs, workers = processes.stubs(), processes.workers()
    server = next(iter(stubs.values())).parent()
    assert server is not None
    named = {"client": psutil.Process(), "tritonserver": server}
    for model, stub in stubs.items():
        named[f"{model}: stub"] = stub
        if model in workers:
            named[f"{model}: worker"] = workers[model]
    return named


def text_request(number: int) -> Request:
    """A prompt that no other request has."""
    return Request(number, 0.0, "text", prompt_text(number, _PROMPT_TOKENS), (), 1)


def picture_request(number: int) -> Request:
    """The same with a picture that no other request has."""
    text = prompt_text(number, _PROMPT_TOKENS)
    return Request(number, 0.0, "image", text, (Picture(number, _SIDE, _SIDE),), 1)


async def measure(url: str, make: Callable[[int], Request], numbers: Sequence[int]) -> dict[str, Cost]:
    """Cost of one request by process."""
    target = open_target([url])
    try:
        requests = [make(number) for number in numbers]
        payloads = [target.prepare(request) for request in requests]
        named = parts()
        await closed_loop(requests[:2], payloads[:2], target, 1)  # warm
        before = {name: cost(process) for name, process in named.items()}
        await closed_loop(requests[2:], payloads[2:], target, 1)
        after = {name: cost(process) for name, process in named.items()}
    finally:
        await target.close()
    return {name: after[name].since(before[name], len(requests) - 2) for name in named}


def table(text: Mapping[str, Cost], picture: Mapping[str, Cost]) -> str:
    """Markdown."""
    lines = ["| process | text: CPU ms | wake-ups | one picture: CPU ms | wake-ups |", "|---|---|---|---|---|"]
    for name in text:
        one, other = text[name], picture[name]
        lines.append(f"| {name} | {one.cpu_ms:.1f} | {one.wake_ups:.0f} | {other.cpu_ms:.1f} | {other.wake_ups:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, required=True, help="a composed folder")
    parser.add_argument("--requests", type=int, default=30, help="of each kind")
    options = parser.parse_args()
    with Server(options.built, choose_ports("127.0.0.1")) as server:
        count = options.requests + 2
        text = asyncio.run(measure(server.endpoints.grpc, text_request, range(1, count + 1)))
        picture = asyncio.run(measure(server.endpoints.grpc, picture_request, range(count + 1, 2 * count + 1)))
    print(table(text, picture))


if __name__ == "__main__":
    command.run(main)
