"""The processes of a server that this process has started, and what they hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_MODEL = re.compile(r"/([^/]+)/\d+/model\.py$")
_WORKER = "python_backends.workers.child"
_SHM = Path("/dev/shm")


def stubs() -> dict[str, psutil.Process]:
    """The stub process of every Python model, by model."""
    return {model: process for process, model in _stubs()}


def workers() -> dict[str, psutil.Process]:
    """The worker process behind every stub that has one, by model."""
    found = {}
    for stub, model in _stubs():
        for child in stub.children():
            if _WORKER in _arguments(child):
                found[model] = child
    return found


@dataclass(frozen=True)
class Held:
    """What the server holds: memory is unique to its processes (USS); shared memory is counted apart."""

    memory_mb: float
    files: int
    threads: int
    processes: int
    shm_files: int
    shm_mb: float

    def __str__(self) -> str:
        return (
            f"{self.memory_mb:7.0f} MB, {self.files:4} file handles, {self.threads:4} threads, "
            f"{self.processes} processes, /dev/shm {self.shm_files} files of {self.shm_mb:.0f} MB"
        )


def held() -> Held:
    """Now, over tritonserver, its stubs and their workers."""
    memory = files = threads = count = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().uss
            files += process.num_fds()
            threads += process.num_threads()
            count += 1
    regions = [path.stat() for path in _SHM.glob("triton_python_backend_shm_region_*")]
    shm_mb = sum(region.st_blocks * 512 for region in regions) / 1e6
    return Held(memory / 1e6, files, threads, count, len(regions), shm_mb)


def _stubs() -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.Process().children(recursive=True):
        arguments = _arguments(process)
        found = _MODEL.search(arguments[1]) if len(arguments) > 1 else None
        if found and "stub" in arguments[0]:
            yield process, found[1]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []
