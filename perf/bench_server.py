"""The server that chaos and soak run against: a deployment as it is served, with its own engine or the fake one."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from client.serving.compose import compose
from client.serving.ports import choose_ports
from client.serving.server import Server
from perf.fake_engine import STEP_MS_VARIABLE, copy_with_fake_engine


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which deployment, and which engine."""
    parser.add_argument("--deployment", type=Path, default=Path("deployments/demo-cpu.yaml"))
    parser.add_argument("--output", type=Path, default=Path("build/demo-cpu"))
    parser.add_argument("--engine", choices=("real", "fake"), default="real", help="fake: no model, only its traffic")
    parser.add_argument("--step-ms", type=float, default=5.0, help="pace of the fake engine")


def add_mix_options(parser: argparse.ArgumentParser, *, requests: int, image_share: float, clients: int) -> None:
    """What it is sent (`perf.mix`); the values are the defaults."""
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--image-share", type=float, default=image_share)
    parser.add_argument("--clients", type=int, default=clients)
    parser.add_argument("--seed", type=int, default=7)


def fresh_server(options: argparse.Namespace) -> Server:
    """A server that remembers nothing, not started yet."""
    compose(options.deployment, options.output, Console(), force=False)
    output = options.output
    if options.engine == "fake":
        os.environ[STEP_MS_VARIABLE] = str(options.step_ms)
        output = copy_with_fake_engine(output, output.with_name(f"{output.name}-fake"))
    return Server(output, choose_ports("127.0.0.1"))


@contextlib.contextmanager
def watched(server: Server) -> Iterator[Server]:
    """The server running, and watched over as `tvlm serve` does."""
    over = threading.Event()
    with server:
        watch = threading.Thread(target=server.run, args=(over,), name="watch", daemon=True)
        watch.start()
        try:
            yield server
        finally:  # before the server ends: its stubs would seem lost
            over.set()
            watch.join()
