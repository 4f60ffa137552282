"""The worker process: loads one target, answers calls, steps the engine while it has work.

A target is a class with `__init__(config)` and `handle(op, arrays, meta) -> (arrays, meta)`. One whose `side_by_side`
is true gets as many calls at a time as there are slots, each in a thread. An engine also has `busy: bool` and
`step() -> payload | None`; its payloads reach the stub as events.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from python_backends.workers.messages import Call, Event, Failed, Heartbeat, Ready, Result, Start
from python_backends.workers.slots import SlotMemory, end_of

_PR_SET_PDEATHSIG = 1


class _Pulse:
    """Sends heartbeats from a thread of its own, so that long native work does not look like death."""

    def __init__(self, connection: Connection, interval_s: float) -> None:
        self._lock = threading.Lock()  # one writer at a time on the connection
        self._begun: dict[object, float] = {}  # work under way; setting, deleting and copying are atomic
        self._connection = connection
        self._interval_s = interval_s

    def send(self, message: object) -> None:
        with self._lock:
            self._connection.send(message)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Marks the time that the stub counts against a hang."""
        work = object()
        self._begun[work] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[work]

    def start(self) -> None:
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval_s)
            try:
                self.send(Heartbeat(min(self._begun.copy().values(), default=None)))
            except OSError:
                return  # the stub is gone, and soon we are


def main(socket_fd: int, memory_fd: int) -> None:
    """Serve until the stub closes its end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the stub
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the parent's to handle
    connection = Connection(socket_fd)
    start: Start = connection.recv()
    os.nice(start.nice)  # before any thread is made: they inherit it
    memory = SlotMemory(memory_fd, start.slots, start.slot_bytes)
    try:
        module, _, name = start.target.partition(":")
        target = getattr(importlib.import_module(module), name)(start.config)
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"{type(error).__name__}: {error}"))
        return
    pulse = _Pulse(connection, start.heartbeat_s)
    pulse.send(Ready())
    pulse.start()
    try:
        _loop(connection, pulse, memory, target)
    except (EOFError, OSError):
        return  # the stub closed its end


def _loop(connection: Connection, pulse: _Pulse, memory: SlotMemory, target: Any) -> None:
    is_engine = hasattr(target, "step")
    threads = ThreadPoolExecutor(memory.count, "call") if getattr(target, "side_by_side", False) else None
    while True:
        stepping = is_engine and target.busy
        if connection.poll(0 if stepping else None):  # calls go before the next step
            call: Call = connection.recv()
            if threads is None:
                _serve(pulse, memory, target, call)
            else:
                threads.submit(_serve, pulse, memory, target, call)
        elif stepping:
            with pulse.working():
                payload = target.step()
            if payload is not None:
                pulse.send(Event(payload))


def _serve(pulse: _Pulse, memory: SlotMemory, target: Any, call: Call) -> None:
    with pulse.working():
        result = _answer(memory, target, call)
    pulse.send(result)


def _answer(memory: SlotMemory, target: Any, call: Call) -> Result:
    try:
        inputs = [memory.view(call.slot, ref) for ref in call.arrays]
        arrays, meta = target.handle(call.op, inputs, call.meta)
        refs = memory.write(call.slot, arrays, start=end_of(call.arrays))
        return Result(call.call_id, refs, meta)
    except Exception as error:
        traceback.print_exc()
        return Result(call.call_id, [], {}, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # native threads of engines may refuse to end
