"""The model `vlm` over gRPC in an event loop: as grpc_client, on grpc.aio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client.grpc_protocol import OPTIONS, STOP_WAITS_S, Pieces, closed, infer_on, to_message, to_vlm_error
from client.request import MODEL, VlmRequest
from client.types import Answer, AsyncTextStream, VlmError


class AsyncGrpcTransport:
    """As GrpcTransport, on grpc.aio; made and used in one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = infer_on(self._channel)
        self._streams = AsyncStreams()

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
        await self._streams.close()
        await self._channel.close()


@dataclass
class AsyncStreams:
    """As Streams."""

    open: weakref.WeakSet[AsyncGrpcStream] = field(default_factory=weakref.WeakSet)
    leaving: set[asyncio.Task[None]] = field(default_factory=set)

    async def close(self) -> None:
        """Stop all, and wait for their end."""
        for stream in list(self.open):
            stream.leave(closed())
        if self.leaving:
            await asyncio.wait(self.leaving)


class AsyncGrpcStream(Pieces, AsyncTextStream):
    """As GrpcStream, in an event loop."""

    def __init__(self, infer: Any, message: bytes, request: VlmRequest, address: str, streams: AsyncStreams) -> None:
        """Send the message of a request."""
        super().__init__(infer, request, address)
        self._loop = loop = asyncio.get_running_loop()
        self._streams = streams
        self._left: VlmError | None = None  # why its reader gets no more
        self._waiting: asyncio.Future[None] = loop.create_future()  # what its reader waits for
        self._reading: asyncio.Future[Any] | None = None  # goes on when its reader is cancelled: gRPC would cancel all
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        if request.timeout_s is not None:
            self._timer = loop.call_later(request.timeout_s, _give_up_async, weakref.ref(self))
        self._call = self._send(message)
        streams.open.add(self)

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
        self.leave(closed())

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
        self._streams.leaving.add(task)
        task.add_done_callback(self._streams.leaving.discard)

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
        for wait_s in STOP_WAITS_S:
            if not await self._ask_to_stop():
                break
            await asyncio.wait((drained,), timeout=wait_s)
            if drained.done():
                break
        await self._finish(drained, wait_s=0.0)

    async def _ask_to_stop(self) -> bool:
        try:
            return not any([message.error_message async for message in self._send_stop()])
        except (grpc.RpcError, grpc.aio.UsageError):  # UsageError: the channel is closed
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
        self._streams.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def _give_up_async(stream: weakref.ref[AsyncGrpcStream]) -> None:
    alive = stream()
    if alive is not None:
        alive.give_up()
