"""An LLM replica as its Triton stub sees it: the worker with the engine, and the channel to the router.

The router attaches once; every engine step is one message to it, for all sequences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from python_backends.deployment import Deployment
from python_backends.engines.protocol import HEARTBEAT_S, NO_NEWS, Finish, StepReport, failure_report
from python_backends.errors import invalid
from python_backends.workers import SupervisedWorker, WorkerSpec
from python_backends.workers.targets import gpu_environment
from python_backends.workers.turns import set_going

_LOAD_S = {"cpu": 120.0, "gpu": 900.0}  # tens of gigabytes from a network file system, and CUDA graphs for every batch


class ReportSink(Protocol):
    """Where an attached router listens."""

    def send(self, report: StepReport) -> None:
        """Deliver one report."""

    def end(self) -> None:
        """No more reports come."""


class DecoderReplica:
    """Takes submissions and cancellations, and reports steps to whoever is attached."""

    def __init__(
        self,
        name: str,
        artifacts: Path,
        deployment: Deployment,
        target: str,
        on_death: Callable[[str], None] | None = None,
        *,
        gpus: Sequence[int] = (),
    ) -> None:
        """`target`: the engine's class, "module:Class"; `gpus` are those that it may use.

        `on_death` gets the reason whenever its worker is replaced.
        """
        pool = deployment.pools.text
        spec = WorkerSpec(
            name=name,
            target=target,
            config={"artifacts": str(artifacts), "deployment": deployment.model_dump(mode="json")},
            slots=2,
            slot_bytes=256 << 20,
            call_timeout_s=pool.stall_timeout_ms / 1000,
            load_timeout_s=_LOAD_S[pool.device],
            environment=gpu_environment(gpus),
        )
        self._tell_death = on_death
        self._stops_encode = deployment.pools.vision.gives_way
        self._lock = threading.Lock()  # guards all below
        self._sink: ReportSink | None = None
        self._active: set[int] = set()
        self._unsent: list[StepReport] = []  # made while nobody was attached; bounded by the active sequences
        self._last_sent = time.monotonic()
        self._worker = SupervisedWorker(spec, on_event=self._on_report, on_death=self._on_death)
        self._closed = threading.Event()
        self._pulse = threading.Thread(target=self._run_pulse, name=f"{name}-pulse", daemon=True)

    def start(self) -> None:
        """Load the engine (ServingError)."""
        self._worker.start()
        self._pulse.start()

    def attach(self, sink: ReportSink) -> None:
        """From now on reports go to `sink`; one that was attached before is ended."""
        with self._lock:
            previous, self._sink = self._sink, sink
            if previous is not None:
                previous.end()
            for report in self._unsent:
                self._send(report)
            self._unsent.clear()

    def submit(self, tensors: Mapping[str, NDArray[Any]]) -> dict[int, str]:
        """Hand sequences to the engine; a tagged error for each that it refuses (ServingError: its worker is gone)."""
        for name in ("request_ids", "sampling"):
            if name not in tensors:
                raise invalid(name, "is missing")
        request_ids = tensors["request_ids"].tolist()
        with self._lock:
            self._active.update(request_ids)
        # object arrays cannot lie in shared memory: texts travel beside it
        arrays = {name: array for name, array in tensors.items() if name not in ("sampling", "pool")}
        texts = {
            name: [text.decode(errors="replace") for text in tensors[name].tolist()]
            for name in ("sampling", "pool")
            if name in tensors
        }
        gone = request_ids
        try:
            reply = self._worker.call("submit", list(arrays.values()), {"names": list(arrays), **texts})
            refused: dict[int, str] = reply.meta["refused"]
            gone = list(refused)
        finally:
            with self._lock:
                self._active.difference_update(gone)
        return refused

    def cancel(self, request_ids: NDArray[np.uint64]) -> None:
        """End these sequences; ones that are gone already are no error."""
        self._worker.call("cancel", [request_ids])

    def stats(self) -> dict[str, Any]:
        """The engine's figures, and how often its worker was started again."""
        return {**self._worker.call("stats").meta, "restarts": self._worker.restarts}

    def reach(self) -> None:
        """Returns when the replica could take a request; its worker has a watch of its own."""
        with self._lock:
            pass

    def close(self) -> None:
        """End the channel and the worker."""
        self._closed.set()
        with self._lock:
            self._end()
        self._worker.close()

    def _on_report(self, report: StepReport) -> None:
        ended = report.request_ids[report.finish_reasons != Finish.RUNNING]
        with self._lock:
            self._active.difference_update(ended.tolist())
            if self._sink is None:
                self._unsent.append(report)
            else:
                self._send(report)

    def _on_death(self, reason: str) -> None:
        if self._stops_encode:
            set_going()
        if self._tell_death:
            self._tell_death(reason)
        with self._lock:
            lost = sorted(self._active)
        if lost:
            self._on_report(failure_report(lost, reason))

    def _run_pulse(self) -> None:
        """While sequences run, the router hears something."""
        while not self._closed.wait(HEARTBEAT_S / 2):
            with self._lock:
                silent_s = time.monotonic() - self._last_sent
                if self._sink is not None and self._active and silent_s > HEARTBEAT_S / 2:
                    self._send(NO_NEWS)

    def _send(self, report: StepReport) -> None:
        assert self._sink is not None
        self._last_sent = time.monotonic()
        try:
            self._sink.send(report)
        except Exception:  # the router's side is gone: keep nothing for it
            self._sink = None

    def _end(self) -> None:
        if self._sink is not None:
            self._sink.end()
            self._sink = None
