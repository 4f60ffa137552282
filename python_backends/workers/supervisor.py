"""The stub's side of a worker process: start, call, watch, restart.

One thread owns the process: it spawns it, reads its messages, notices death and hangs, and restarts it with backoff.
A worker that dies or hangs turns into an error for exactly the calls that were in it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from python_backends.errors import ServingError, Status, unavailable
from python_backends.workers.messages import Call, Event, Failed, Heartbeat, Ready, Result, Start
from python_backends.workers.slots import SlotMemory, SlotOverflow

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
SILENCE_S = 1.0  # four missed heartbeats: native code that holds the GIL, or a stopped process
_BACKOFF_S = (0.0, 0.1, 0.2, 0.5)  # with the time to notice, a new one is begun within two seconds of the old one's end
_HEALTHY_S = 30.0  # a worker that lived this long starts the backoff anew


@dataclass(frozen=True)
class WorkerSpec:
    """What to run. `target` is "module:Class" (see `workers.child`); `config` is handed to its constructor."""

    name: str
    target: str
    config: dict[str, Any]
    slots: int = 2  # calls in flight
    slot_bytes: int = 64 << 20
    call_timeout_s: float = 30.0  # work that takes longer is a hang: the worker is killed
    load_timeout_s: float = 120.0
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of the stub's own
    silence_s: float = SILENCE_S  # of a process that is stopped by a signal: longer is a hang
    nice: int = 0  # 19 yields most: what runs behind latency-bound work takes only the time that it leaves


@dataclass(frozen=True)
class Reply:
    """A worker's answer; the arrays are copies that the caller owns."""

    arrays: list[NDArray[Any]]
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pending:
    """A call that is in the worker."""

    future: Future[Result]
    since_s: float = field(default_factory=time.monotonic)


class SupervisedWorker:
    """A worker process that is there again soon after whatever happens to it.

    `on_event` receives the payloads of an engine; `on_death` is called with the reason after a worker died or was
    killed, when the calls in it have failed. Both run in the watching thread and must not block.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        on_event: Callable[[Any], None] | None = None,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self._on_event = on_event
        self._on_death = on_death
        self._memory = SlotMemory.create(spec.name, spec.slots, spec.slot_bytes)
        self._free_slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(spec.slots):
            self._free_slots.put(slot)
        self._lock = threading.Lock()  # guards _pending, and writes to the connection
        self._pending: dict[int, _Pending] = {}
        self._call_ids = itertools.count(1)
        self._ready = threading.Event()
        self._first_load: Future[None] = Future()
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"supervise-{spec.name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The present process, None between a death and the restart."""
        return self._process.pid if self._process else None

    @property
    def ready(self) -> bool:
        """Whether a call would be taken up now."""
        return self._ready.is_set()

    def start(self) -> None:
        """Start the process and wait until it is loaded (ServingError when it can't be)."""
        self._thread.start()
        self._first_load.result()

    def call(self, op: str, arrays: Sequence[NDArray[Any]] = (), meta: dict[str, Any] | None = None) -> Reply:
        """Run `op` in the worker and wait for the answer; thread-safe.

        Raises:
            ServingError: UNAVAILABLE when the worker died, hung, or is not back in time; INTERNAL when `op` failed.
        """
        deadline = time.monotonic() + self.spec.call_timeout_s
        try:
            slot = self._free_slots.get(timeout=self.spec.call_timeout_s)
        except queue.Empty:
            raise unavailable(f"{self.spec.name}: no free slot within {self.spec.call_timeout_s:g} s") from None
        try:
            refs = self._memory.write(slot, arrays)
            if not self._ready.wait(max(0.0, deadline - time.monotonic())):
                raise unavailable(f"{self.spec.name}: the worker is restarting")
            future: Future[Result] = Future()
            call = Call(next(self._call_ids), slot, op, refs, meta or {})
            self._send(call, future)
            result = future.result()  # the watching thread ends every call, by an answer or by an error
            if result.error is not None:
                raise ServingError(Status.INTERNAL, f"{self.spec.name}: {result.error}")
            return Reply([self._memory.view(slot, ref).copy() for ref in result.arrays], result.meta)
        except SlotOverflow as error:
            raise ServingError(Status.INTERNAL, f"{self.spec.name}: {error}") from None
        finally:
            self._free_slots.put(slot)

    def close(self) -> None:
        """End the process; calls in it fail."""
        self._closing.set()
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join()
        self._memory.close()

    def _send(self, call: Call, future: Future[Result]) -> None:
        with self._lock:
            if self._connection is None:
                raise unavailable(f"{self.spec.name}: the worker is restarting")
            self._pending[call.call_id] = _Pending(future)
            with contextlib.suppress(OSError):  # it just died: the watching thread fails this call with the others
                self._connection.send(call)

    # The watching thread.

    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            self._closing.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            if self._closing.is_set():
                break
            started = time.monotonic()
            reason = self._run_once()
            self._bury(reason)
            if not self._first_load.done():
                self._first_load.set_exception(unavailable(f"{self.spec.name}: {reason}"))
                return
            failures = 1 if time.monotonic() - started > _HEALTHY_S else failures + 1
            self.restarts += 1
            if not self._closing.is_set():
                log.error("%s: %s; restarting", self.spec.name, reason)
                self._tell_death(reason)

    def _run_once(self) -> str:
        """Spawn, load, serve until the end; gives the reason of the end."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    python_executable(),
                    "-m",
                    "python_backends.workers.child",
                    str(theirs.fileno()),
                    str(self._memory.fd),
                ],
                pass_fds=(theirs.fileno(), self._memory.fd),
                env={**os.environ, **self.spec.environment},
            )
        connection = Connection(ours.detach())
        self._connection = connection
        spec = self.spec
        if self._closing.is_set():  # close() may have looked before there was a process to kill
            return "closed"
        try:
            connection.send(
                Start(spec.name, spec.target, spec.config, spec.slots, spec.slot_bytes, HEARTBEAT_S, spec.nice),
            )
            if not connection.poll(spec.load_timeout_s):
                return f"not loaded within {spec.load_timeout_s:g} s"
            message = connection.recv()
            if isinstance(message, Failed):
                return message.reason
            assert isinstance(message, Ready)
            self._ready.set()
            if not self._first_load.done():
                self._first_load.set_result(None)
            return self._serve(connection)
        except (EOFError, OSError):
            code = self._process.wait()
            return f"the worker process ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"
        except Exception as error:  # of ours; without this thread every call would wait for ever
            log.exception("%s: watching the worker failed", spec.name)
            return f"watching it failed: {type(error).__name__}: {error}"

    def _serve(self, connection: Connection) -> str:
        heard = time.monotonic()
        while True:
            if connection.poll(HEARTBEAT_S):
                message = connection.recv()
                heard = time.monotonic()
                if isinstance(message, Event):
                    assert self._on_event is not None
                    self._on_event(message.payload)
                elif isinstance(message, Result):
                    with self._lock:
                        pending = self._pending.pop(message.call_id)
                    pending.future.set_result(message)
                elif isinstance(message, Heartbeat) and (hang := self._hang(message, heard)) is not None:
                    return hang
            else:
                silent_s = time.monotonic() - heard
                if silent_s > self.spec.call_timeout_s or (silent_s > self.spec.silence_s and self._is_stopped()):
                    return f"hung: silent for {silent_s:.1f} s"

    def _hang(self, heartbeat: Heartbeat, now: float) -> str | None:
        """Whether one that lives gets nothing done: busy for too long, or idle although a call waits."""
        limit_s = self.spec.call_timeout_s
        if heartbeat.busy_since is not None:
            busy_s = now - heartbeat.busy_since
            return f"hung: busy for {busy_s:.1f} s (limit {limit_s:g} s)" if busy_s > limit_s else None
        with self._lock:
            waited_s = now - min((pending.since_s for pending in self._pending.values()), default=now)
        return f"hung: a call was not taken up for {waited_s:.1f} s" if waited_s > limit_s else None

    def _tell_death(self, reason: str) -> None:
        try:
            if self._on_death:
                self._on_death(reason)
        except Exception:
            log.exception("%s: telling of the worker's death failed", self.spec.name)

    def _is_stopped(self) -> bool:
        """Whether the process is stopped by a signal (state T in proc(5)); silent ones may just be at work."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] in "Tt"

    def _bury(self, reason: str) -> None:
        """Make sure the process is gone (it must not write into slots any more), then fail its calls."""
        self._ready.clear()
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        with self._lock:
            pending, self._pending = self._pending, {}
            assert self._connection is not None
            self._connection.close()
            self._connection = None
        for call in pending.values():
            call.future.set_exception(unavailable(f"{self.spec.name}: {reason}"))


def python_executable() -> str:
    """The interpreter to start workers with: inside Triton's stub, sys.executable is not one."""
    candidates = [Path(sys.executable or ""), Path(sys.exec_prefix) / "bin" / f"python3.{sys.version_info.minor}"]
    for candidate in candidates:
        if candidate.name.startswith("python") and os.access(candidate, os.X_OK):
            return str(candidate)
    return "python3"
