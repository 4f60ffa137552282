"""The model `vlm` over gRPC: Triton's streaming call, one call a request, so that each has its own deadline and end.

The stubs come from tritonclient; its stream object is not used, as one stream there is one queue with one callback, and
cancelling one request cancels all.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import queue
import threading
import time
import weakref
from typing import Any

import grpc

from client.grpc_protocol import (
    CLOSE_S,
    END_S,
    OPTIONS,
    STOP_WAITS_S,
    call_timeout_s,
    client_closed,
    closed,
    from_message,
    infer_on,
    late,
    send_stop,
    to_message,
    to_vlm_error,
)
from client.request import AnswerBuilder, VlmRequest
from client.types import Answer, TextStream


class GrpcTransport:
    """Requests to one server address (host:port) over one channel; threads may share it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._calls = _Calls(self._channel)

    def stream(self, request: VlmRequest) -> TextStream:
        """Send the request; its pieces come from the stream."""
        return GrpcStream(self._calls, request, self._address)

    def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        with self.stream(request) as pieces:
            for _ in pieces:
                pass
            return pieces.answer

    def close(self) -> None:
        """Stop the running requests and close the channel."""
        self._calls.close()
        self._channel.close()

    def __del__(self) -> None:
        self._calls.dismiss()


class _Call:
    """One request in the server. It is read in a thread of its own, so that no interrupt can hit gRPC in a read."""

    def __init__(self, infer: Any, request: VlmRequest, running: dict[int, _Call]) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()  # in the end an RpcError or None
        self.ended = threading.Event()
        self._infer = infer
        self._request_id = request.request_id
        self._running = running
        self._tries = 0
        self._call = infer(to_message(request).SerializeToString(), timeout=call_timeout_s(request))
        running[id(self)] = self
        threading.Thread(target=self._read, name="vlm-read", daemon=True).start()

    def try_to_end(self) -> float | None:
        """Ask the server to end it, or cancel it when that is of no use; seconds until the next try, or None."""
        if self.ended.is_set():
            return None
        if self._tries == len(STOP_WAITS_S) or not self._ask_to_stop():
            self._call.cancel()
            return None
        self._tries += 1
        return STOP_WAITS_S[self._tries - 1]

    def _ask_to_stop(self) -> bool:
        try:
            return not any([message.error_message for message in send_stop(self._infer, self._request_id)])
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed
            return False

    def _read(self) -> None:
        end = None
        try:
            for message in self._call:
                self.messages.put(message)
        except grpc.RpcError as error:
            end = error
        self._running.pop(id(self), None)
        self.ended.set()
        self.messages.put(end)


class _Calls:
    """Those of one channel, and the thread that ends what nobody wants any more.

    A stream may be dropped anywhere, in a collection of garbage in the midst of a lock too, or by a dying interpreter:
    all that is done there is to put its call into a queue.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._infer = infer_on(channel)
        self._running: dict[int, _Call] = {}
        self._left: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        _channels.add(self)

    def start(self, request: VlmRequest) -> _Call:
        """Send a request (VlmError: too late)."""
        with self._lock:
            if self._closed:
                raise client_closed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._end_those_left, name="vlm-stop", daemon=True)
                self._thread.start()
        try:
            return _Call(self._infer, request, self._running)
        except ValueError:  # the channel was closed meanwhile
            raise client_closed() from None

    def leave(self, call: _Call) -> None:
        """Nobody wants it any more."""
        self._left.put(call)

    def close(self) -> None:
        """Stop all, and wait a while for their end."""
        with self._lock:
            self._closed = True
        for call in list(self._running.values()):
            self._left.put(call)
        self.dismiss()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def dismiss(self) -> None:
        """End the thread, once it has nothing to do."""
        self._left.put(None)

    def _end_those_left(self) -> None:
        due: list[tuple[float, int, _Call]] = []  # a heap: when to try next; a number, as calls have no order; whom
        numbers = itertools.count()
        closing = False
        while due or not closing:
            try:
                call = self._left.get(timeout=max(0.0, due[0][0] - time.monotonic()) if due else None)
                wait_s: float | None = END_S
            except queue.Empty:
                call = heapq.heappop(due)[2]
                wait_s = call.try_to_end()
            if call is None:
                closing = True
            elif wait_s is not None:
                heapq.heappush(due, (time.monotonic() + wait_s, next(numbers), call))


_channels: weakref.WeakSet[_Calls] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter stops its threads where they are: gRPC's objects may need a lock that one holds."""
    for calls in list(_channels):
        calls.close()


class GrpcStream(TextStream):
    """One request's pieces. Threads may share it, and any may close it."""

    _call: _Call | None = None  # until it is sent

    def __init__(self, calls: _Calls, request: VlmRequest, address: str) -> None:
        """Send the request (VlmError)."""
        self._calls = calls
        self._request = request
        self._address = address
        self._builder = AnswerBuilder()
        self._left = False  # it is being stopped
        self._closed = False
        self._deadline_s = None if request.timeout_s is None else time.monotonic() + request.timeout_s
        self._call = calls.start(request)

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return self._builder.answer()

    def __next__(self) -> str:
        assert self._call is not None
        try:
            message = self._call.messages.get(timeout=self._left_s())
        except queue.Empty:
            if not self._left:
                self._left = True
                self._calls.leave(self._call)
            raise late(self._request) from None
        if self._closed:
            self._call.messages.put(None)  # for whoever else reads
            raise closed()
        if message is None or isinstance(message, grpc.RpcError):
            self._call.messages.put(message)
            if message is None:
                raise StopIteration
            raise to_vlm_error(message, self._address) from message
        return self._builder.add(from_message(message))

    def close(self) -> None:
        """Stop the request, and wait a while for its end; does nothing when its time is over."""
        if self._call is None or self._left or self._call.ended.is_set():
            return
        self._left = self._closed = True
        self._call.messages.put(None)  # for whoever reads
        self._calls.leave(self._call)
        self._call.ended.wait(CLOSE_S)

    def __del__(self) -> None:
        if self._call is not None and not (self._left or self._call.ended.is_set()):
            self._calls.leave(self._call)

    def _left_s(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
