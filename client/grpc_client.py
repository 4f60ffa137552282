"""The model `vlm` over gRPC: Triton's streaming call, one call a request, so that each has its own deadline and end.

The stubs come from tritonclient; its stream object is not used, as one stream there is one queue with one callback, and
cancelling one request cancels all.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client.grpc_messages import to_message, to_vlm_error
from client.grpc_streams import AsyncGrpcStream, GrpcStream
from client.request import MODEL, VlmRequest
from client.types import Answer, AsyncTextStream, TextStream

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels of a process share connections and their waits; a new client must not wait for an older one's.
    ("grpc.use_local_subchannel_pool", 1),
    # A channel that lost its server refuses at once until it has tried again; gRPC's own waits (1 s, then up to
    # 120 s) would outlast the attempts of a request.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class GrpcTransport:
    """Requests to one server address (host:port) over one channel; threads may share it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._infer = _infer(self._channel)

    def stream(self, request: VlmRequest) -> TextStream:
        """Send the request; its pieces come from the stream."""
        return GrpcStream(self._infer, to_message(request).SerializeToString(), request, self._address)

    def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        with self.stream(request) as pieces:
            for _ in pieces:
                pass
            return pieces.answer

    def close(self) -> None:
        """Close the channel; running requests are cancelled."""
        self._channel.close()


class AsyncGrpcTransport:
    """As GrpcTransport, on grpc.aio; made and used in one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = _infer(self._channel)
        self._leaving: set[asyncio.Task[None]] = set()

    def stream(self, request: VlmRequest) -> AsyncTextStream:
        """Send the request; its pieces come from the stream."""
        return self.send(to_message(request).SerializeToString(), request)

    def send(self, message: bytes, request: VlmRequest) -> AsyncGrpcStream:
        """As `stream`, with its `to_message` serialised already: with pictures that takes milliseconds."""
        return AsyncGrpcStream(self._infer, message, request, self._address, self._leaving)

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
        """Close the channel, once what was left has ended; running requests are cancelled."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._channel.close()


def _infer(channel: Any) -> Any:
    """Triton's streaming call on a channel, for one request a call.

    To Triton it is a stream of requests; a client that declares a single one sends headers, message and end at once,
    where the generated stub waits for each of the three. It takes serialised messages.
    """
    return channel.unary_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
