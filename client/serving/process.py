"""One running tritonserver: its start, its log, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from client.serving import guard
from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.regions import Regions
from client.serving.runtime import PROJECT, Runtime

_EXIT_S = 3  # for the models to end; requests have been drained before

_LOAD_FAILURE = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_ERROR_LINE = re.compile(r"^(?:E\d{4} .*?\] |error: )(.*)")


class TritonProcess:
    """tritonserver on a composed repository, its log in a file. Not threadsafe.

    It runs under a guard (guard.py), which ends it with this process. Start it from a thread that lives as long as it
    is to run: to the kernel the end of that thread is the end of the parent.
    """

    def __init__(
        self, runtime: Runtime, repository: Path, ports: Ports, host: str, log: Path, *, options: Sequence[str] = ()
    ) -> None:
        """Start it, with `options` beside those that it always gets; its log goes on where an earlier one's ended."""
        self.log = log
        # A name of our own, so that what a tritonserver leaves behind can be told from what another one uses.
        regions = Regions(ports.http)
        command = [
            str(runtime.binary),
            f"--model-repository={repository}",
            f"--http-address={host}",
            f"--http-port={ports.http}",
            f"--grpc-address={host}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={host}",
            f"--metrics-port={ports.metrics}",
            f"--exit-timeout-secs={_EXIT_S}",
            "--disable-auto-complete-config",  # our configurations are complete; it would start every stub twice
            f"--backend-config=python,shm-region-prefix-name={regions.prefix}",
            *options,
        ]
        if runtime.backends is not None:
            command.append(f"--backend-directory={runtime.backends}")
        with log.open("ab") as sink:
            self._log_start = sink.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-IS", guard.__file__, str(os.getpid()), str(_EXIT_S), regions.prefix, *command],
                pass_fds=(regions.lock_fd,),
                cwd=PROJECT,  # the stubs import from their working directory first, wherever the user is
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **runtime.environment},
                start_new_session=True,  # a Ctrl-C reaches it through stop() only
            )
        regions.hand_over()

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def has_ended_within(self, seconds: float) -> bool:
        """Wait so long for its end."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int:
        """The guard's; tritonserver is its child."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once, with every process that it started."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def stop(self) -> None:
        """End it with every process that it started: in order, or by force when that takes long.

        Ctrl-C meanwhile ends it at once.
        """
        try:
            self._process.terminate()
            self._process.wait()
        except KeyboardInterrupt:
            self.kill()
            raise

    def failure(self) -> ServeError:
        """Why it ended by itself, as far as the log tells."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
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
