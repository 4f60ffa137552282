"""`tvlm serve` as operators run it, for tests: on the echo fake, in a process of its own."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.conftest import ROOT, free_ports

DEPLOYMENT = ROOT / "deployments" / "demo-cpu.yaml"
FAKE_TVLM = ROOT / "tests" / "fakes" / "tvlm_prebuilt.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


class ServedByTvlm:
    """A running `tvlm serve`, up to its "Ready" line."""

    def __init__(self, output: Path, *options: str, deployment: Path = DEPLOYMENT, grace_s: float = 60) -> None:
        self.ports = free_ports()
        self.grpc = f"grpc://127.0.0.1:{self.ports.grpc}"
        command = [sys.executable, FAKE_TVLM, "serve", "-d", deployment, "-o", output, "--host", "127.0.0.1"]
        command += [f"--{name}-port={port}" for name, port in vars(self.ports).items()]
        command.append(f"--grace-s={grace_s}")
        self.log = output / f"tvlm-{self.ports.http}.log"
        with self.log.open("w") as sink:
            self.process = subprocess.Popen(
                [str(part) for part in [*command, *options]],
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env=ENVIRONMENT,
            )
        self.printed: list[str] = []
        while not self.printed or not self.printed[-1].startswith("Ready"):
            line = self.next_line()
            assert line, self.log.read_text()
            self.printed.append(line)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def regions(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"*_{self.process.pid}_{self.ports.http}_*"))

    def names(self) -> set[str]:
        return {process.name()[:15] for process in self.family}


@contextlib.contextmanager
def serving(output: Path, *options: str, grace_s: float = 60) -> Iterator[ServedByTvlm]:
    """It, and nothing of it afterwards."""
    served = ServedByTvlm(output, *options, grace_s=grace_s)
    try:
        yield served
    finally:
        served.process.terminate()
        served.process.wait(30)
        for process in served.family:
            if process.is_running():
                process.kill()
