"""The arrangements that are compared, each started by one call: a context that yields URLs which answer alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from client.api import VlmClient
from client.serving.ports import choose_ports
from client.serving.server import Server
from client.types import VlmError
from perf.workloads import Picture
from perf.workloads.payload import picture_bytes

_START_S = 300
PRODUCT = "product"
MONOLITH = "monolith"


@dataclass(frozen=True)
class Arm:
    """One arrangement of the same engines on the same cores."""

    name: str
    label: str  # for tables and plots


ARMS = {
    arm.name: arm
    for arm in (
        Arm(MONOLITH, "(a) monolith"),
        Arm("two-monoliths", "(b) two one-core monoliths"),
        Arm("text-first", "(c) monolith, text first"),
        Arm("split-cores", "(d) split, a core each"),
        Arm("split-equal", "(d) split, equal priority"),
        Arm("split-nice", "(d) split, encoder at nice 15"),
        Arm(PRODUCT, "(e) triton-vlm"),
    )
}


@contextmanager
def running(name: str, output: Path, logs: Path) -> Iterator[Sequence[str]]:
    """Start an arm on the composed deployment in `output`; ready and warm inside, gone after it (RuntimeError)."""
    logs.mkdir(parents=True, exist_ok=True)
    if name == PRODUCT:
        with Server(output, choose_ports("127.0.0.1")) as server:
            yield [server.endpoints.grpc]
        return
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        if name == "two-monoliths":
            half = max(1, len(cores) // 2)
            shares = [(MONOLITH, cores[:half]), (MONOLITH, cores[half:] or cores)]
        else:
            shares = [(name, cores)]
        urls = [
            stack.enter_context(_baseline(arrangement, output / "artifacts", share, logs / f"{name}-{index}.log"))
            for index, (arrangement, share) in enumerate(shares)
        ]
        yield urls


@contextmanager
def _baseline(arrangement: str, artifacts: Path, cores: Sequence[int], log: Path) -> Iterator[str]:
    port = choose_ports("127.0.0.1").grpc
    command = [sys.executable, "-m", "perf.baselines", arrangement, "--artifacts", str(artifacts)]
    command += ["--port", str(port), "--cores", ",".join(map(str, cores))]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        url = f"grpc://127.0.0.1:{port}"
        _await(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a text and a picture were answered, as the product's own start does."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with VlmClient(url) as vlm:
                vlm.generate("Hi", max_tokens=1, timeout_s=60)
                vlm.generate("Hi", images=[picture_bytes(Picture(0, 64, 64))], max_tokens=1, timeout_s=60)
            return
        except VlmError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the baseline does not answer ({error}); see {log}") from None
            time.sleep(0.2)
