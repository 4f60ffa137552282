"""A composed deployment, served: from the deployment file to endpoints that answer."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import urllib3
from PIL import Image

from client.api import VlmClient
from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.probes import Probes, hang_limit_s
from client.serving.process import TritonProcess, wait_until
from client.serving.regions import sweep
from client.serving.runtime import find_runtime
from client.serving.stubs import StubWatch
from client.serving.watcher import Watcher
from client.types import VlmError
from python_backends.deployment import Deployment
from python_backends.router.drain import CONTROL_VARIABLE, DrainOrder

log = logging.getLogger(__name__)

_START_S = 600  # a large model loads for minutes
_WARM_S = 120
_WARM_AGAIN_S = 10  # nothing is built anew, and until it is over nobody watches
_LOOK_S = 0.5  # between two looks at the stubs
_DYING_S = 0.3  # a tritonserver that ends takes its stubs with it: no loss to mend
_LAST_WORD_S = 5  # for the router to answer those that the grace time was too short for


@dataclass(frozen=True)
class Endpoints:
    """Where a server answers."""

    http: str
    grpc: str
    metrics: str


class Server:
    """A tritonserver on a composed output folder. A context manager: ready inside, gone after it."""

    def __init__(
        self, output: Path, ports: Ports, host: str = "127.0.0.1", *, deployment: Deployment | None = None
    ) -> None:
        """Describe the server of a deployment, or of a folder whose limits are all the defaults.

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
        self._deployment = deployment or Deployment(checkpoint=output)
        self._process: TritonProcess | None = None
        self._stubs: StubWatch | None = None  # of that process, learnt of since it began: one may die before run()
        self._takes_requests = False
        reachable = "localhost" if host in ("0.0.0.0", "::") else host
        self.endpoints = Endpoints(
            http=f"http://{reachable}:{ports.http}",
            grpc=f"grpc://{reachable}:{ports.grpc}",
            metrics=f"http://{reachable}:{ports.metrics}/metrics",
        )
        self.log = output / f"tritonserver-{ports.http}.log"
        self._control_folder = output / f"control-{ports.http}"
        self._order = DrainOrder(self._control_folder)
        self._control = RepositoryControl(self.endpoints.http)

    def __enter__(self) -> Server:
        self.log.unlink(missing_ok=True)
        try:
            self._start()
        except BaseException:
            if self._process is not None:
                self._process.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is not None:
            (self._process.kill if kind is KeyboardInterrupt else self._process.stop)()
        self._order.close()

    def run(self, over: threading.Event | None = None) -> None:
        """Watch over it while it serves, until `over` is set, or the exception of a signal handler.

        A model whose stub is lost is loaded again, a tritonserver that ends by itself started again.

        Raises:
            ServeError: tritonserver can't be brought back.
        """
        watcher = Watcher(self._control, self._restart, _START_S)
        try:
            self._watch(watcher, over or threading.Event())
        finally:
            watcher.close()

    def _watch(self, watcher: Watcher, over: threading.Event) -> None:
        watched: TritonProcess | None = None
        while not over.is_set():
            assert self._process is not None and self._stubs is not None, "run() belongs inside the with block"
            watch = self._stubs
            if watched is not self._process:  # at the begin, and after a restart
                watched = self._process
                probes = Probes(self.endpoints.http, partial(hang_limit_s, self._deployment))
            losses = watch.look()
            for model, reason in probes.look(watch.models).items():
                losses += watch.losses_of(model, reason)
            if losses and not watched.has_ended_within(_DYING_S):
                for loss in losses:
                    watch.forget(loss.model)  # a reload ends its other instances too
                    probes.forget(loss.model)
                    loss.end()
                watcher.mend(losses)
            elif watched.has_ended_within(_LOOK_S):
                watcher.revive(watched.failure())
            watcher.check()

    def drain(self, grace_s: float) -> None:
        """Not ready from now on, and nothing new is admitted; waits for what runs, for the grace time at most."""
        assert self._process is not None, "drain() belongs inside the with block"
        if not self._takes_requests:  # it was being restarted
            return
        self._control.make_not_ready()
        self._order.give(grace_s)
        deadline = time.monotonic() + grace_s + _LAST_WORD_S
        while not self._order.is_done and self._process.poll() is None and wait_until(deadline):
            pass

    def _start(self, *, again: bool = False) -> None:
        """`again`: what stops a first start with a clear line was lost here while it started, and is tried again."""
        for region in sweep():
            log.info("removed %s, which an earlier server left in /dev/shm", region)
        self._order.open()
        runtime = find_runtime(self._output / "runtime")
        environment = {**runtime.environment, CONTROL_VARIABLE: str(self._control_folder)}
        self._process = TritonProcess(
            replace(runtime, environment=environment),
            self._repository,
            self._ports,
            self._host,
            self.log,
            options=[*self._control.options, *self._limiting_options(), f"--exit-on-error={str(not again).lower()}"],
        )
        self._stubs = StubWatch(psutil.Process(self._process.pid))
        self._await_models(self._process, self._stubs, load_missing=again)
        self._takes_requests = True  # of clients, too: a signal from here on drains
        try:
            self._warm(self._process, _WARM_AGAIN_S if again else _WARM_S)
        except ServeError as error:
            if not again or self._process.poll() is not None:
                raise
            log.warning("%s", error)  # a stage that was lost meanwhile is the watch's to mend

    def _limiting_options(self) -> list[str]:
        """Triton heeds the rate limiters in configurations only when it is told to."""
        configurations = self._repository.glob("*/config.pbtxt")
        limited = any("rate_limiter" in path.read_text() for path in configurations)
        return ["--rate-limit=execution_count"] if limited else []

    def _restart(self) -> None:
        assert self._process is not None
        self._takes_requests = False
        self._process.kill()
        self._start(again=True)

    def _await_models(self, process: TritonProcess, stubs: StubWatch, *, load_missing: bool) -> None:
        """Wait until every model is loaded; `load_missing`: load those that failed once more."""
        deadline = time.monotonic() + _START_S
        with urllib3.PoolManager(retries=False, headers={"Connection": "close"}) as pool:
            while not _is_ready(pool, f"{self.endpoints.http}/v2/health/ready"):
                if process.poll() is not None:
                    raise process.failure()
                if not wait_until(deadline):
                    raise ServeError(f"the models are not ready after {_START_S} s; see the log {self.log}")
                stubs.learn()
                if load_missing and _is_ready(pool, f"{self.endpoints.http}/v2/health/live"):
                    self._load_missing(stubs, deadline)
        stubs.learn()

    def _load_missing(self, stubs: StubWatch, deadline: float) -> None:
        """Once each: what is lost again is tried at the next look."""
        for model in self._control.not_loaded():
            stubs.forget(model)
            log.warning("loading model %s, which was lost while the server started", model)
            with contextlib.suppress(ServeError):
                self._control.load(model, max(1.0, deadline - time.monotonic()))

    def _warm(self, process: TritonProcess, timeout_s: float) -> None:
        """One request through every stage, so that a user's first is as fast as the others."""
        try:
            with VlmClient(self.endpoints.grpc) as vlm:
                vlm.generate("Hi", max_tokens=1, timeout_s=timeout_s)
                if self._deployment.limits.images_per_request:
                    vlm.generate("Hi", images=[_small_picture()], max_tokens=1, timeout_s=timeout_s)
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
