"""The gateway beside a server: a process of its own, started after the server and ended before it.

It holds no state, so one that dies is started again on its port.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import urllib3

from client.serving.errors import ServeError
from client.serving.guard import PR_SET_PDEATHSIG, prctl
from client.serving.ports import next_free
from client.serving.process import wait_until
from client.serving.runtime import PROJECT
from gateway.settings import load_settings

log = logging.getLogger(__name__)

_USUAL_PORT = 8080
_START_S = 60
_DEATHS = 3  # within `_CALM_S`, before it is given up
_CALM_S = 60.0
_ERROR = "tvlm: error: "
_LAST_BYTES = 4096  # of its log, which hold its last line


class GatewayProcess:
    """A context manager: it takes requests inside, and is gone after it. When it is given up, this process ends, too.

    Enter it from a thread that lives as long as it is to run: to the kernel the end of that thread is the parent's.
    """

    def __init__(
        self, output: Path, server: str, *, config: Path | None = None, port: int | None = None, grace_s: int = 10
    ) -> None:
        """Describe it: `server` is a grpc:// URL, `config` its settings file, `port` beats the file's.

        Raises:
            SettingsError: the settings are not acceptable.
            ServeError: its packages are not installed, or there is no free port.
        """
        if importlib.util.find_spec("uvicorn") is None:
            raise ServeError("the gateway is not installed: pip install -c constraints.txt -e '.[gateway]'")
        settings = load_settings(config)
        if port is None:
            in_file = "port" in settings.model_fields_set
            port = settings.port if in_file else next_free(settings.host, _USUAL_PORT)
        self._command = [sys.executable, "-m", "client", "gateway", "--server", server, "--grace-s", str(grace_s)]
        self._command += ["--config", str(config.absolute())] if config else []
        self._port = port
        self.log = output.absolute() / f"gateway-{port}.log"
        self.url = ""
        self._starting_or_stopping = threading.Lock()
        self._stopping = False
        self._failure: ServeError | None = None

    def __enter__(self) -> GatewayProcess:
        self.log.unlink(missing_ok=True)
        self._start()
        try:
            assert self._process.stdout is not None
            self.url = self._process.stdout.readline().strip().removeprefix("gateway on ")
            self._await_ready()
        except BaseException:
            self._stop(signal.SIGTERM)
            raise
        self._port = int(self.url.rpartition(":")[2])  # where it is to be found from now on
        threading.Thread(target=self._watch, name="gateway-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # KeyboardInterrupt is a second signal: no more draining
        self._stop(signal.SIGKILL if kind is KeyboardInterrupt else signal.SIGTERM)
        if self._failure is not None:
            raise self._failure

    def _start(self) -> None:
        """Start it from the thread that will wait for its end; its log goes on where an earlier one's ended."""
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self._port)],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                start_new_session=True,  # a Ctrl-C reaches it through __exit__ only
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (one system call, which takes no lock)
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        with urllib3.PoolManager(retries=False) as pool:
            while True:
                with contextlib.suppress(urllib3.exceptions.HTTPError):
                    if self.url and pool.request("GET", f"{self.url}/health/ready", timeout=5.0).status == 200:
                        return
                if not self.url or self._process.poll() is not None:
                    raise self._failed()
                if not wait_until(deadline):
                    raise ServeError(f"the gateway is not ready after {_START_S} s; see the log {self.log}")

    def _watch(self) -> None:
        """Start it again when it ends and nobody asked for that; given up, it ends the server as Ctrl-C does."""
        deaths: deque[float] = deque(maxlen=_DEATHS)
        while True:
            self._process.wait()
            deaths.append(time.monotonic())
            with self._starting_or_stopping:
                if self._stopping:
                    return
                if len(deaths) == _DEATHS and deaths[-1] - deaths[0] < _CALM_S:
                    self._failure = self._failed(f", {_DEATHS} times within {_CALM_S:.0f} s")
                    break
                log.warning("%s; starting it again", self._failed())
                self._start()
        os.kill(os.getpid(), signal.SIGINT)

    def _failed(self, how_often: str = "") -> ServeError:
        code = self._process.wait()
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        with self.log.open("rb") as text:  # it may be long
            text.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
            last = text.read().decode(errors="replace").strip().rpartition("\n")[2]
        if code > 0 and last.startswith(_ERROR):
            reason += f", {last.removeprefix(_ERROR)}"
        return ServeError(f"the gateway ended by itself{how_often}: {reason} (its log: {self.log})")

    def _stop(self, number: signal.Signals) -> None:
        with self._starting_or_stopping:
            self._stopping = True
            self._process.send_signal(number)
        self._process.wait()


def _end_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
