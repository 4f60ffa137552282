"""The arrangements that are compared, each started by one call: a context that yields URLs which answer alike."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from client.serving.guard import PR_SET_PDEATHSIG, prctl
from client.serving.ports import choose_ports
from client.serving.server import Server
from perf.load import OK, Run, closed_loop, open_target
from perf.workloads import Picture, Request
from python_backends.deployment import load_built_deployment

_START_S = 300
_ASK_S = 60
PRODUCT = "product"
MONOLITH = "monolith"


@dataclass(frozen=True)
class Arm:
    """One arrangement of the same engines on the same cores; a peer brings an engine of its own."""

    name: str
    label: str  # for tables and plots
    peer: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm(MONOLITH, "(a) monolith"),
        Arm("two-monoliths", "(b) two one-core monoliths"),
        Arm("text-first", "(c) monolith, text first"),
        Arm("split-cores", "(d) split, a core each"),
        Arm("split-equal", "(d) split, equal priority"),
        Arm("split-nice", "(d) split, encoder at nice 15"),
        Arm("transformers", "transformers' generate, float32", peer=True),
        Arm("vllm", "vLLM, float32", peer=True),
        Arm(PRODUCT, "(e) triton-vlm"),
    )
}
COMPARED = tuple(name for name, arm in ARMS.items() if not arm.peer)


def label(name: str) -> str:
    """An arm's name in tables; what is no arm is a variant of the product."""
    return ARMS[name].label if name in ARMS else f"(e) with {name}"


@contextmanager
def running(name: str, output: Path, logs: Path) -> Iterator[Sequence[str]]:
    """Start an arm on the composed deployment in `output`; ready inside, gone after it (RuntimeError, ServeError).

    A name that is no other arm's is the product.
    """
    logs.mkdir(parents=True, exist_ok=True)
    if name == PRODUCT or name not in ARMS:
        with Server(output, choose_ports("127.0.0.1")) as server:
            yield [server.endpoints.grpc]
        return
    with ExitStack() as stack:
        urls = []
        for index, (scheme, command) in enumerate(_commands(name, output)):
            port = choose_ports("127.0.0.1").grpc
            url = f"{scheme}://127.0.0.1:{port}"
            command += ["--port", str(port)]
            stack.enter_context(_process(command, url, logs / f"{name}-{index}.log"))
            urls.append(url)
        yield urls


def _commands(name: str, output: Path) -> list[tuple[str, list[str]]]:
    """What an arm's servers speak, and their command lines, port excepted."""
    cores = sorted(os.sched_getaffinity(0))
    artifacts = output / "artifacts"
    checkpoint = load_built_deployment(artifacts).checkpoint
    if name == "transformers":
        command = _python("perf.peers.transformers_generate", "--checkpoint", checkpoint, "--artifacts", artifacts)
        return [("grpc", command)]
    if name == "vllm":
        folder = output.with_name(f"{checkpoint.name}-hf")
        return [("http", _python("perf.peers.vllm_serve", "--checkpoint", checkpoint, "--folder", folder))]
    half = max(1, len(cores) // 2)
    shares = [(name, cores)]
    if name == "two-monoliths":
        shares = [(MONOLITH, cores[:half]), (MONOLITH, cores[half:] or cores)]
    return [
        ("grpc", _python("perf.baselines", arm, "--artifacts", artifacts, "--cores", ",".join(map(str, share))))
        for arm, share in shares
    ]


def _python(module: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _end_with_parent() -> None:
    """In the child: it would sit beside the next bench when this one is killed."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _process(command: list[str], url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  (one call of C, which takes no lock)
        )
    try:
        _await(url, process, log)
        yield
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
    while (error := asyncio.run(_ask(url))) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    if error:
        raise RuntimeError(f"{url} does not answer ({error}); see {log}")


def complaint(urls: Sequence[str]) -> str:
    """What is wrong with an arm that runs, nothing when all its servers answer."""
    return next((f"{url}: {error}" for url in urls if (error := asyncio.run(_ask(url)))), "")


async def _ask(url: str) -> str:
    """What is wrong, nothing when a text and a picture were answered."""
    asked = [Request(0, 0.0, "text", "Hi", (), 1), Request(1, 0.0, "image", "Hi", (Picture(0, 64, 64),), 1)]
    target = open_target([url])
    try:
        run: Run = await closed_loop(asked, [target.prepare(request) for request in asked], target, 1, _ASK_S)
    finally:
        await target.close()
    return next((record.error for record in run.records if record.outcome != OK), "")
