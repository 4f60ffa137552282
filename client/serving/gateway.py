"""The gateway beside a server: a process of its own, started after the server and ended before it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import urllib3

from client.serving.errors import ServeError
from client.serving.guard import PR_SET_PDEATHSIG, prctl
from client.serving.ports import next_free
from client.serving.process import wait_until
from client.serving.runtime import PROJECT
from gateway.settings import load_settings

_USUAL_PORT = 8080
_START_S = 60


class GatewayProcess:
    """A context manager: it takes requests inside, and is gone after it. Its end is this process's, too.

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
        self._command = [sys.executable, "-m", "client", "gateway", "--server", server, "--port", str(port)]
        self._command += ["--grace-s", str(grace_s)] + (["--config", str(config.absolute())] if config else [])
        self.log = output.absolute() / f"gateway-{port}.log"
        self.url = ""
        self._stopping = False
        self._failure: ServeError | None = None

    def __enter__(self) -> GatewayProcess:
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                self._command,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                start_new_session=True,  # a Ctrl-C reaches it through __exit__ only
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (no other thread runs yet)
            )
        try:
            assert self._process.stdout is not None
            self.url = self._process.stdout.readline().strip().removeprefix("gateway on ")
            self._await_ready()
        except BaseException:
            self._stop()
            raise
        threading.Thread(target=self._watch, name="gateway-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:  # a second signal: no more draining
            self._stopping = True
            self._process.kill()
        self._stop()
        if self._failure is not None:
            raise self._failure

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
        """An end that nobody asked for ends the server as Ctrl-C does."""
        self._process.wait()
        if not self._stopping:
            self._failure = self._failed()
            os.kill(os.getpid(), signal.SIGINT)

    def _failed(self) -> ServeError:
        self._process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("tvlm: error: ") if lines else f"status {self._process.returncode}"
        return ServeError(f"the gateway ended by itself: {reason} (its log: {self.log})")

    def _stop(self) -> None:
        self._stopping = True
        self._process.terminate()
        self._process.wait()


def _end_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
