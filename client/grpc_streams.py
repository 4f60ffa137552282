"""Answers of the model `vlm` as they come over gRPC, and how they end early.

A call that is cancelled while Triton 24.10 writes its answer can crash or lock up all of tritonserver, whose stream
handler and writer take the same locks in opposite orders, or free what the other uses: seen once in 400 to 2,000
cancellations around an answer's end. So what nobody wants any more is stopped by a request of its own (the input
`stop`) and read to its end. Only a server that does not heed it has its call cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from client.grpc_messages import from_message, to_stop_message, to_vlm_error
from client.request import AnswerBuilder, VlmRequest
from client.types import Answer, AsyncTextStream, TextStream, VlmError

_STOP_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)  # between tries: one may overtake a request that comes with pictures
_STOP_TIMEOUT_S = 0.5  # of each
_LAST_RESORT_S = 5.0  # after a request's own timeout, for gRPC to cancel it


class _Pieces:
    """What both streams do with the messages of their call."""

    def __init__(self, infer: Any, request: VlmRequest, address: str) -> None:
        self._infer = infer
        self._request_id = request.request_id
        self._timeout_s = request.timeout_s
        self._address = address
        self._builder = AnswerBuilder()

    @property
    def answer(self) -> Answer:
        return self._builder.answer()

    def _send(self, message: bytes) -> Any:
        timeout_s = None if self._timeout_s is None else self._timeout_s + _LAST_RESORT_S
        return self._infer(message, timeout=timeout_s)

    def _piece(self, message: Any) -> str:
        return self._builder.add(from_message(message))

    def _send_stop(self) -> Any:
        return self._infer(to_stop_message(self._request_id), timeout=_STOP_TIMEOUT_S)

    def _late(self) -> VlmError:
        return VlmError("DEADLINE_EXCEEDED", f"no answer within {self._timeout_s:.3g} s (timeout_s)")


class GrpcStream(_Pieces, TextStream):
    """One call, blocking. Any thread may close it."""

    _ended = True  # until there is a call
    _left: VlmError | None = None  # why its reader gets no more

    def __init__(self, infer: Any, message: bytes, request: VlmRequest, address: str) -> None:
        """Send the message of a request."""
        super().__init__(infer, request, address)
        self._turn = threading.Lock()  # gRPC takes one reader at a time
        self._call = self._send(message)
        self._ended = False
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
        leaving = self._leave(VlmError("CANCELLED", "the stream was closed"))
        if leaving is not None:
            leaving.join()

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and gRPC with it
            self._leave(VlmError("CANCELLED", "the stream was dropped"))

    def give_up(self) -> None:
        """Its time is over."""
        self._leave(self._late())

    def _leave(self, reason: VlmError) -> threading.Thread | None:
        """Have it end, in a thread, as it may be dropped in one of gRPC's own."""
        if self._ended or self._left is not None:
            return None
        self._left = reason
        leaving = threading.Thread(target=self._wind_down, name="stream-end", daemon=True)
        leaving.start()
        return leaving

    def _wind_down(self) -> None:
        draining = self._drain()
        for wait_s in _STOP_WAITS_S:
            if not self._ask_to_stop():
                break
            draining.join(wait_s)
            if not draining.is_alive():
                break
        self._finish(draining, wait_s=0.0)

    def _ask_to_stop(self) -> bool:
        try:
            return not any([message.error_message for message in self._send_stop()])
        except grpc.RpcError:
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
        if self._timer is not None:
            self._timer.cancel()


def _give_up(stream: weakref.ref[GrpcStream]) -> None:
    alive = stream()
    if alive is not None:
        alive.give_up()


class AsyncGrpcStream(_Pieces, AsyncTextStream):
    """As GrpcStream, in an event loop; what still ends when it is left is kept in `leaving`."""

    def __init__(
        self, infer: Any, message: bytes, request: VlmRequest, address: str, leaving: set[asyncio.Task[None]]
    ) -> None:
        """Send the message of a request."""
        super().__init__(infer, request, address)
        self._loop = loop = asyncio.get_running_loop()
        self._leaving = leaving
        self._left: VlmError | None = None  # why its reader gets no more
        self._waiting: asyncio.Future[None] = loop.create_future()  # what its reader waits for
        self._reading: asyncio.Future[Any] | None = None  # goes on when its reader is cancelled: gRPC would cancel all
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        if request.timeout_s is not None:
            self._timer = loop.call_later(request.timeout_s, _give_up_async, weakref.ref(self))
        self._call = self._send(message)

    async def __anext__(self) -> str:
        message = await self._next()
        if message is grpc.aio.EOF:
            self._end()
            raise StopAsyncIteration
        try:
            return self._piece(message)
        except VlmError:  # the last message
            self._start(self._finish(self._drain()))
            raise

    async def aclose(self) -> None:
        """Stop the request."""
        self.leave(VlmError("CANCELLED", "the stream was closed"))

    def leave(self, reason: VlmError) -> None:
        """Have it end; its reader gets the reason at once."""
        if not self._ended and self._left is None:
            self._left = reason
            self._wake()
            self._start(self._wind_down())

    def give_up(self) -> None:
        """Its time is over."""
        self.leave(self._late())

    def _start(self, ending: Coroutine[Any, Any, None]) -> None:
        self._end()
        task = self._loop.create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _next(self) -> Any:
        if self._left is not None:
            raise self._left
        reading = self._read()
        if not reading.done():
            self._waiting = waiting = self._loop.create_future()
            reading.add_done_callback(self._wake)
            await waiting
        if self._left is not None:
            raise self._left
        self._reading = None
        if reading.cancelled():
            self._end()
            raise VlmError("CANCELLED", "the server cancelled the request")
        try:
            return reading.result()
        except grpc.RpcError as error:
            self._end()
            raise to_vlm_error(error, self._address) from error

    def _wake(self, _: object = None) -> None:
        if not self._waiting.done():
            self._waiting.set_result(None)

    def _read(self) -> asyncio.Future[Any]:
        if self._reading is None:
            self._reading = self._loop.create_task(self._call.read())
        return self._reading

    async def _wind_down(self) -> None:
        drained = self._drain()
        for wait_s in _STOP_WAITS_S:
            if not await self._ask_to_stop():
                break
            await asyncio.wait((drained,), timeout=wait_s)
            if drained.done():
                break
        await self._finish(drained, wait_s=0.0)

    async def _ask_to_stop(self) -> bool:
        call = self._send_stop()
        try:
            return not any([message.error_message async for message in call])
        except grpc.RpcError:
            return False

    def _drain(self) -> asyncio.Task[None]:
        """Read what is left, in a task."""

        async def read() -> None:
            while True:
                reading = self._read()
                await asyncio.wait((reading,))
                self._reading = None
                if reading.cancelled() or reading.exception() is not None or reading.result() is grpc.aio.EOF:
                    return

        return self._loop.create_task(read())

    async def _finish(self, drained: asyncio.Task[None], wait_s: float = 1.0) -> None:
        """Cancel it, should it not be at its end."""
        await asyncio.wait((drained,), timeout=wait_s)
        self._call.cancel()  # does nothing to a call that has ended

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()


def _give_up_async(stream: weakref.ref[AsyncGrpcStream]) -> None:
    alive = stream()
    if alive is not None:
        alive.give_up()
