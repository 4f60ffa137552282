"""A composed deployment, served: from the deployment file to endpoints that answer."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import urllib3
from PIL import Image

from client.api import VlmClient
from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.process import TritonProcess, wait_until
from client.serving.runtime import find_runtime
from client.types import VlmError

_START_S = 600  # a large model loads for minutes
_WARM_S = 120


@dataclass(frozen=True)
class Endpoints:
    """Where a server answers."""

    http: str
    grpc: str
    metrics: str


class Server:
    """A tritonserver on a composed output folder. A context manager: ready inside, gone after it."""

    def __init__(
        self, output: Path, ports: Ports, host: str = "127.0.0.1", *, images: bool = True, grace_s: int = 10
    ) -> None:
        """Describe the server: `images` False leaves out the warm-up with a picture, `grace_s` bounds its draining.

        Raises:
            ServeError: the folder holds no composed repository.
        """
        output = output.absolute()
        self._repository = output / "model_repository"
        if not self._repository.is_dir():
            raise ServeError(f"{output} holds no model_repository; compose it with `tvlm build`")
        self._output = output
        self._ports = ports
        self._host = host
        self._images = images
        self._grace_s = grace_s
        self._process: TritonProcess | None = None
        reachable = "localhost" if host in ("0.0.0.0", "::") else host
        self.endpoints = Endpoints(
            http=f"http://{reachable}:{ports.http}",
            grpc=f"grpc://{reachable}:{ports.grpc}",
            metrics=f"http://{reachable}:{ports.metrics}/metrics",
        )
        self.log = output / f"tritonserver-{ports.http}.log"

    def __enter__(self) -> Server:
        runtime = find_runtime(self._output / "runtime")
        self._process = TritonProcess(
            runtime, self._repository, self._ports, self._host, self.log, grace_s=self._grace_s
        )
        try:
            self._await_models(self._process)
            self._warm(self._process)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop()

    def run(self) -> NoReturn:
        """Wait while it serves, until the exception of a signal handler.

        Raises:
            ServeError: tritonserver ended by itself.
        """
        if self._process is None:
            raise RuntimeError("run() belongs inside the with block")
        self._process.wait()
        raise self._process.failure()

    def _await_models(self, process: TritonProcess) -> None:
        """Wait until every model is loaded."""
        deadline = time.monotonic() + _START_S
        with urllib3.PoolManager(retries=False, headers={"Connection": "close"}) as pool:
            while not _is_ready(pool, f"{self.endpoints.http}/v2/health/ready"):
                if process.poll() is not None:
                    raise process.failure()
                if not wait_until(deadline):
                    raise ServeError(f"the models are not ready after {_START_S} s; see the log {self.log}")

    def _warm(self, process: TritonProcess) -> None:
        """One request through every stage, so that a user's first is as fast as the others."""
        try:
            with VlmClient(self.endpoints.grpc) as vlm:
                vlm.generate("Hi", max_tokens=1, timeout_s=_WARM_S)
                if self._images:
                    vlm.generate("Hi", images=[_small_picture()], max_tokens=1, timeout_s=_WARM_S)
        except VlmError as error:
            if process.poll() is not None:
                raise process.failure() from error
            raise ServeError(f"the server started but its first request failed: {error} (log: {self.log})") from error


def _is_ready(pool: urllib3.PoolManager, url: str) -> bool:
    try:
        return bool(pool.request("GET", url, timeout=5.0).status == 200)
    except urllib3.exceptions.HTTPError:
        return False


def _small_picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(buffer, format="PNG")
    return buffer.getvalue()
