"""The model `vlm` over gRPC in an event loop: as grpc_client, on grpc.aio."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

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
from client.request import MODEL, AnswerBuilder, VlmRequest
from client.types import Answer, AsyncTextStream, VlmError

_STOPS = 8  # at a time: more would make each other late


class AsyncGrpcTransport:
    """As GrpcTransport, on grpc.aio; made and used in one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = infer_on(self._channel)
        self._streams = _Streams()

    def stream(self, request: VlmRequest) -> AsyncTextStream:
        """Send the request; its pieces come from the stream."""
        return self.send(to_message(request).SerializeToString(), request)

    def send(self, message: bytes, request: VlmRequest) -> AsyncGrpcStream:
        """As `stream`, with its `to_message` serialised already: with pictures that takes milliseconds."""
        return AsyncGrpcStream(self._infer, message, request, self._address, self._streams)

    async def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        async with self.stream(request) as pieces:
            async for _ in pieces:
                pass
            return pieces.answer

    async def is_ready(self, timeout_s: float) -> bool:
        """Whether server and model take requests: false while they start or drain (VlmError when none answers)."""
        try:
            server = await self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s)
            model = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=timeout_s)
        except grpc.RpcError as error:
            raise to_vlm_error(error, self._address) from error
        return bool(server.ready and model.ready)

    async def close(self) -> None:
        """Stop the running requests and close the channel."""
        try:
            await self._streams.close()
        finally:
            await self._channel.close()


class _Streams:
    """Those of one channel: they end before it does."""

    def __init__(self) -> None:
        self.open: weakref.WeakSet[AsyncGrpcStream] = weakref.WeakSet()
        self.ending: set[asyncio.Task[None]] = set()
        self.stops = asyncio.Semaphore(_STOPS)
        self.closed = False

    async def close(self) -> None:
        """Stop all, and wait a while for their end."""
        self.closed = True
        await asyncio.sleep(0)  # for those that were dropped just now
        for stream in list(self.open):
            stream.leave(closed())
        if self.ending:
            await asyncio.wait(self.ending, timeout=CLOSE_S)


class AsyncGrpcStream(AsyncTextStream):
    """One request's pieces."""

    def __init__(self, infer: Any, message: bytes, request: VlmRequest, address: str, streams: _Streams) -> None:
        """Send the message of a request (VlmError)."""
        self._ended = True  # until it is sent
        if streams.closed:
            raise client_closed()
        self._loop = loop = asyncio.get_running_loop()
        self._infer = infer
        self._request_id = request.request_id
        self._timeout_s = request.timeout_s
        self._address = address
        self._streams = streams
        self._builder = AnswerBuilder()
        self._reason: VlmError | None = None  # why its reader gets no more
        self._turn = asyncio.Lock()  # gRPC takes one reader at a time
        self._waiting: asyncio.Future[None] = loop.create_future()  # what its reader waits for
        self._reading: asyncio.Future[Any] | None = None  # goes on when its reader is cancelled: gRPC would cancel all
        self._timer: asyncio.TimerHandle | None = None
        if request.timeout_s is not None:
            self._timer = loop.call_later(request.timeout_s, _give_up, weakref.ref(self))
        self._call = infer(message, timeout=call_timeout_s(request))
        self._ended = False
        streams.open.add(self)

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return self._builder.answer()

    async def __anext__(self) -> str:
        async with self._turn:
            message = await self._next()
        if message is grpc.aio.EOF:
            self._end()
            raise StopAsyncIteration
        try:
            return self._builder.add(from_message(message))
        except VlmError as error:  # the last message
            self.leave(again(error))
            raise

    async def aclose(self) -> None:
        """Stop the request."""
        self.leave(closed())

    def __del__(self) -> None:
        if not self._ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.leave, closed())

    def leave(self, reason: VlmError) -> None:
        """Have it end; its reader gets the reason at once."""
        if not self._ended and self._reason is None:
            self._reason = reason
            self._wake()
            self._end()
            task = self._loop.create_task(self._stop())
            self._streams.ending.add(task)
            task.add_done_callback(self._streams.ending.discard)

    def give_up(self) -> None:
        """Its time is over."""
        if self._timeout_s is not None:
            self.leave(late(self._timeout_s))

    async def _next(self) -> Any:
        if self._reason is not None:
            raise again(self._reason)
        reading = self._read()
        if not reading.done():
            self._waiting = waiting = self._loop.create_future()
            reading.add_done_callback(self._wake)
            try:
                await waiting
            finally:
                reading.remove_done_callback(self._wake)
        if self._reason is not None:
            raise again(self._reason)
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

    async def _stop(self) -> None:
        """Have the server end it; cancel it if that does not help."""
        drained = self._loop.create_task(self._drain())
        await asyncio.wait((drained,), timeout=END_S)
        for wait_s in STOP_WAITS_S:
            async with self._streams.stops:
                if drained.done() or not await self._ask_to_stop():
                    break
            await asyncio.wait((drained,), timeout=wait_s)
        self._call.cancel()  # does nothing to one that has ended
        await asyncio.wait((drained,), timeout=END_S)

    async def _ask_to_stop(self) -> bool:
        try:
            call = send_stop(self._infer, self._request_id)
            return not any([message.error_message async for message in call])
        except (grpc.RpcError, grpc.aio.UsageError):  # UsageError: the channel is closed
            return False

    async def _drain(self) -> None:
        """Read what is left."""
        while True:
            reading = self._read()
            await asyncio.wait((reading,))
            self._reading = None
            if reading.cancelled() or reading.exception() is not None or reading.result() is grpc.aio.EOF:
                return

    def _end(self) -> None:
        self._ended = True
        self._streams.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def _give_up(stream: weakref.ref[AsyncGrpcStream]) -> None:
    alive = stream()
    if alive is not None:
        alive.give_up()
