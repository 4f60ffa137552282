"""The model `vlm` over gRPC: Triton's streaming call, one call a request, so that each has its own deadline and end.

The stubs come from tritonclient; its stream object is not used, as one stream there is one queue with one callback, and
cancelling one request cancels all.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import grpc

from client.grpc_protocol import OPTIONS, STOP_WAITS_S, Pieces, closed, infer_on, to_message, to_vlm_error
from client.request import VlmRequest
from client.types import Answer, TextStream, VlmError


class GrpcTransport:
    """Requests to one server address (host:port) over one channel; threads may share it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._infer = infer_on(self._channel)
        self._streams = Streams()

    def stream(self, request: VlmRequest) -> TextStream:
        """Send the request; its pieces come from the stream."""
        message = to_message(request).SerializeToString()
        return GrpcStream(self._infer, message, request, self._address, self._streams)

    def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        with self.stream(request) as pieces:
            for _ in pieces:
                pass
            return pieces.answer

    def close(self) -> None:
        """Stop the running requests and close the channel."""
        self._streams.close()
        self._channel.close()


@dataclass
class Streams:
    """Those of one channel: they end before it does."""

    open: weakref.WeakSet[GrpcStream] = field(default_factory=weakref.WeakSet)
    leaving: set[threading.Thread] = field(default_factory=set)

    def close(self) -> None:
        """Stop all, and wait for their end."""
        for stream in list(self.open):
            stream.leave(closed())
        for thread in list(self.leaving):
            thread.join()


class GrpcStream(Pieces, TextStream):
    """One call, blocking. Any thread may close it."""

    _ended = True  # until there is a call
    _left: VlmError | None = None  # why its reader gets no more

    def __init__(self, infer: Any, message: bytes, request: VlmRequest, address: str, streams: Streams) -> None:
        """Send the message of a request."""
        super().__init__(infer, request, address)
        self._streams = streams
        self._turn = threading.Lock()  # gRPC takes one reader at a time
        self._call = self._send(message)
        self._ended = False
        streams.open.add(self)
        self._timer: threading.Timer | None = None
        if request.timeout_s is not None:
            self._timer = threading.Timer(request.timeout_s, _give_up, [weakref.ref(self)])
            self._timer.daemon = True
            self._timer.start()

    def __next__(self) -> str:
        try:
            message = self._next()
        except grpc.RpcError as error:
            self._end()
            raise self._left or to_vlm_error(error, self._address) from error
        if self._left is not None:
            raise self._left
        if message is None:
            self._end()
            raise StopIteration
        try:
            return self._piece(message)
        except VlmError:  # the last message
            self._finish(self._drain())
            raise

    def close(self) -> None:
        """Stop the request, and wait for its end."""
        leaving = self.leave(closed())
        if leaving is not None:
            leaving.join()

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and gRPC with it
            self.leave(closed())

    def give_up(self) -> None:
        """Its time is over."""
        self.leave(self._late())

    def leave(self, reason: VlmError) -> threading.Thread | None:
        """Have it end; its reader gets the reason. In a thread, as it may be dropped in one of gRPC's own."""
        if self._ended or self._left is not None:
            return None
        self._left = reason
        leaving = threading.Thread(target=self._wind_down, name="stream-end", daemon=True)
        self._streams.leaving.add(leaving)
        leaving.start()
        return leaving

    def _wind_down(self) -> None:
        try:
            self._stop()
        finally:
            self._streams.leaving.discard(threading.current_thread())

    def _stop(self) -> None:
        draining = self._drain()
        for wait_s in STOP_WAITS_S:
            if not self._ask_to_stop():
                break
            draining.join(wait_s)
            if not draining.is_alive():
                break
        self._finish(draining, wait_s=0.0)

    def _ask_to_stop(self) -> bool:
        try:
            return not any([message.error_message for message in self._send_stop()])
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed
            return False

    def _drain(self) -> threading.Thread:
        """Read what is left, in a thread."""

        def read() -> None:
            with contextlib.suppress(grpc.RpcError):
                while self._next() is not None:
                    pass

        draining = threading.Thread(target=read, name="stream-drain", daemon=True)
        draining.start()
        return draining

    def _finish(self, draining: threading.Thread, wait_s: float = 1.0) -> None:
        """Cancel it, should it not be at its end."""
        draining.join(wait_s)
        self._end()
        self._call.cancel()  # does nothing to a call that has ended

    def _next(self) -> Any:
        with self._turn:
            return next(self._call, None)

    def _end(self) -> None:
        self._ended = True
        self._streams.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def _give_up(stream: weakref.ref[GrpcStream]) -> None:
    alive = stream()
    if alive is not None:
        alive.give_up()
