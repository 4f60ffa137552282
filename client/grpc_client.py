"""The model `vlm` over gRPC: Triton's streaming call, one call a request, so that each has its own deadline and end.

The stubs come from tritonclient; its stream object is not used, as one stream there is one queue with one callback, and
cancelling one request cancels all.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
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
    again,
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
from client.types import Answer, TextStream, VlmError


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

    def __init__(self, calls: _Calls, message: bytes, request: VlmRequest) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()  # in the end an RpcError or None
        self.ended = threading.Event()
        self._calls = calls
        self._request_id = request.request_id
        self._tries = 0
        self._call = calls.infer(message, timeout=call_timeout_s(request))
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
            return not any([message.error_message for message in send_stop(self._calls.infer, self._request_id)])
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed
            return False

    def _read(self) -> None:
        end: BaseException | None = None
        try:
            for message in self._call:
                self.messages.put(message)
        except grpc.RpcError as error:
            end = error
        finally:
            self.ended.set()
            self._calls.forget(self)
            self.messages.put(end)


class _Calls:
    """Those of one channel, and the thread that ends what nobody wants any more, or is late.

    A stream may be dropped anywhere, in a collection of garbage in the midst of a lock too, or by a dying interpreter:
    all that is done there is to put its call into a queue.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.infer = infer_on(channel)
        self._running: dict[int, _Call] = {}
        self._to_end: queue.SimpleQueue[tuple[float, _Call] | None] = (
            queue.SimpleQueue()
        )  # whom to end, and in how long
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dismissed = False
        _channels.add(self)

    def start(self, message: bytes, request: VlmRequest) -> _Call:
        """Send the message of a request (VlmError: the client is closed)."""
        with self._lock:
            if self._closed:
                raise client_closed()
            if self._thread is None:
                thread = threading.Thread(target=self._end_those_left, name="vlm-stop", daemon=True)
                thread.start()
                self._thread = thread
            try:
                call = _Call(self, message, request)
            except ValueError:  # the channel is closed
                raise client_closed() from None
            self._running[id(call)] = call
        if call.ended.is_set():  # so soon that it could not be forgotten
            self.forget(call)
        if request.timeout_s is not None:
            self._to_end.put((request.timeout_s, call))
        return call

    def leave(self, call: _Call) -> None:
        """Nobody wants it any more."""
        self._to_end.put((END_S, call))

    def forget(self, call: _Call) -> None:
        """It has ended."""
        self._running.pop(id(call), None)
        if self._dismissed:
            self._to_end.put(None)  # the thread waits for the last one

    def close(self) -> None:
        """Stop all, and wait a while for their end."""
        self.stop_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def stop_all(self) -> None:
        """Stop all."""
        with self._lock:
            self._closed = True
        for call in list(self._running.values()):
            self.leave(call)
        self.dismiss()

    def dismiss(self) -> None:
        """End the thread, once nothing runs."""
        self._dismissed = True
        self._to_end.put(None)

    def _end_those_left(self) -> None:
        # A heap: when to try next; a number, as calls have no order; whom, weakly: most end long before their deadline.
        due: list[tuple[float, int, weakref.ref[_Call]]] = []
        numbers = itertools.count()
        while self._running or not self._dismissed:
            try:
                entry = self._to_end.get(timeout=max(0.0, due[0][0] - time.monotonic()) if due else None)
            except queue.Empty:
                call = heapq.heappop(due)[2]()
                wait_s = None if call is None else call.try_to_end()
            else:
                wait_s, call = entry or (None, None)
            if call is not None and wait_s is not None and not call.ended.is_set():
                heapq.heappush(due, (time.monotonic() + wait_s, next(numbers), weakref.ref(call)))
            entry = call = None  # else they would live while it waits


_channels: weakref.WeakSet[_Calls] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter stops its threads where they are: gRPC's objects may need a lock that one holds."""
    channels = list(_channels)
    for calls in channels:
        calls.stop_all()
    for calls in channels:
        calls.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_channels.clear)  # a child has none of their threads


class GrpcStream(TextStream):
    """One request's pieces. Threads may share it, and any may close it."""

    _call: _Call | None = None  # until it is sent

    def __init__(self, calls: _Calls, request: VlmRequest, address: str) -> None:
        """Send the request (VlmError)."""
        self._calls = calls
        self._address = address
        self._builder = AnswerBuilder()
        self._reason: VlmError | None = None  # why its reader gets no more
        self._timeout_s = request.timeout_s
        self._deadline_s = None if request.timeout_s is None else time.monotonic() + request.timeout_s
        self._call = calls.start(to_message(request).SerializeToString(), request)

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return self._builder.answer()

    def __next__(self) -> str:
        assert self._call is not None
        wait_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        try:
            if wait_s == 0.0 and not self._call.ended.is_set():
                raise queue.Empty
            message = self._call.messages.get(timeout=wait_s)
        except queue.Empty:
            assert self._timeout_s is not None
            self._reason = self._reason or late(self._timeout_s)
            raise again(self._reason) from None
        if self._reason is not None:
            self._call.messages.put(None)  # for whoever else reads
            raise again(self._reason)
        if message is None or isinstance(message, grpc.RpcError):
            self._call.messages.put(message)
            if message is None:
                raise StopIteration
            raise to_vlm_error(message, self._address) from message
        return self._builder.add(from_message(message))

    def close(self) -> None:
        """Stop the request, and wait a while for its end; does nothing when its time is over."""
        if self._call is None or self._reason is not None or self._call.ended.is_set():
            return
        self._reason = closed()
        self._call.messages.put(None)  # for whoever reads
        self._calls.leave(self._call)
        self._call.ended.wait(CLOSE_S)

    def __del__(self) -> None:
        if self._call is not None and not self._call.ended.is_set():
            self._calls.leave(self._call)
