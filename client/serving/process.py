"""One running tritonserver: its start, its log, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from client.serving import guard
from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.runtime import PROJECT, Runtime

_LOAD_FAILURE = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_ERROR_LINE = re.compile(r"^(?:E\d{4} .*?\] |error: )(.*)")


class TritonProcess:
    """tritonserver on a composed repository, its log in a file. Not threadsafe.

    It runs under a guard (guard.py), which ends it with this process. Start it from a thread that lives as long as it
    is to run: to the kernel the end of that thread is the end of the parent.
    """

    def __init__(
        self, runtime: Runtime, repository: Path, ports: Ports, host: str, log: Path, *, grace_s: int = 10
    ) -> None:
        """Start it; `grace_s` is for running requests, and idle HTTP connections, when it is told to stop."""
        self.log = log
        # A name of our own, so that what a tritonserver leaves behind can be told from what another one uses.
        regions = f"triton_python_backend_shm_region_{os.getpid()}_{ports.http}_"
        command = [
            str(runtime.binary),
            f"--model-repository={repository}",
            f"--http-address={host}",
            f"--http-port={ports.http}",
            f"--grpc-address={host}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={host}",
            f"--metrics-port={ports.metrics}",
            f"--exit-timeout-secs={grace_s}",
            "--disable-auto-complete-config",  # our configurations are complete; it would start every stub twice
            f"--backend-config=python,shm-region-prefix-name={regions}",
        ]
        if runtime.backends is not None:
            command.append(f"--backend-directory={runtime.backends}")
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-IS", guard.__file__, str(os.getpid()), str(grace_s), regions, *command],
                cwd=PROJECT,  # the stubs import from their working directory first, wherever the user is
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **runtime.environment},
                start_new_session=True,  # a Ctrl-C reaches it through stop() only
            )

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        self._process.wait()

    def stop(self) -> None:
        """Drain and end it, at the latest when the grace time is over, with every process that it started.

        Ctrl-C while it drains ends it at once.
        """
        try:
            self._process.terminate()
            self._process.wait()
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            raise

    def failure(self) -> ServeError:
        """Why it ended by itself, as far as the log tells."""
        text = self.log.read_text(errors="replace")
        loads = [f"model {name} did not load: {reason}" for name, reason in _LOAD_FAILURE.findall(text)]
        errors = [match[1] for line in text.splitlines() if (match := _ERROR_LINE.match(line))]
        reason = (loads or errors[-1:] or [f"it ended with status {self._process.returncode} and no error"])[0]
        return ServeError(f"tritonserver ended by itself: {reason.strip()} (its log: {self.log})")


def wait_until(deadline: float, pause_s: float = 0.05) -> bool:
    """Pause before the next look at something awaited; False when `deadline` (time.monotonic) has passed."""
    if time.monotonic() >= deadline:
        return False
    time.sleep(pause_s)
    return True
