"""Gateways as operators run them, for tests: `tvlm gateway` in a process of its own."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.waiting import until

ROOT = Path(__file__).parents[1]


class RunningGateway:
    """`tvlm gateway` with these settings on a free port, ready; its log is `log`."""

    def __init__(self, folder: Path, *, ready: bool = True, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "gateway.yaml"
        config.write_text(yaml.safe_dump({"port": 0, **settings}))
        self.log_file = folder / "gateway.log"
        with self.log_file.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from client.cli import main; main()", "gateway", "--config", str(config)],
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("gateway on "), self.log
        self.url = first.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        if ready:
            assert until(lambda: self.status("/health/ready") == 200, 60), self.log

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def ended(self) -> list[Any]:
        """The log's lines of requests, parsed."""
        lines = [line.partition(" gateway: ")[2] for line in self.log.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def status(self, path: str) -> int:
        """The status of a GET, 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def __enter__(self) -> "RunningGateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
