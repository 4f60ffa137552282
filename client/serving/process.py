"""One running tritonserver: its start, its log, its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from client.serving import launcher
from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.runtime import Runtime

_KILL_AFTER_GRACE_S = 10
_STUBS_LEAVE_S = 3  # a stub sees within a second that tritonserver is gone, and removes its shared memory
_LOAD_FAILURE = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_ERROR_LINE = re.compile(r"^(?:E\d{4} .*?\] |error: )(.*)")


class TritonProcess:
    """tritonserver on a composed repository, its log in a file. Not threadsafe.

    Start it from a thread that lives as long as it is to run: the kernel ends it with that thread.
    """

    def __init__(
        self, runtime: Runtime, repository: Path, ports: Ports, host: str, log: Path, *, grace_s: int = 10
    ) -> None:
        """Start it; `grace_s` is for running requests, and idle HTTP connections, when it is told to stop."""
        self.log = log
        self._grace_s = grace_s
        # A name of our own, so that what a tritonserver leaves behind can be told from what another one uses.
        self._shared_memory = f"triton_python_backend_shm_region_{os.getpid()}_{ports.http}_"
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
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
        ]
        if runtime.backends is not None:
            command.append(f"--backend-directory={runtime.backends}")
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-IS", launcher.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **runtime.environment},
                start_new_session=True,  # a Ctrl-C reaches it through stop() only, and once
            )

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it came in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Drain and end it, at the latest after the grace time, together with every process that it started.

        A second Ctrl-C while it drains ends it at once.
        """
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                self.wait(self._grace_s + _KILL_AFTER_GRACE_S)
                deadline = time.monotonic() + _STUBS_LEAVE_S
                while self._group_lives() and wait_until(deadline):
                    pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for region in Path("/dev/shm").glob(f"{self._shared_memory}*"):
                region.unlink(missing_ok=True)

    def _group_lives(self) -> bool:
        """Whether a process that it started is left: the stubs and their workers share its process group."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

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
