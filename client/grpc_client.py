"""The model `vlm` over gRPC: Triton's streaming call, one call a request, so that each has its own deadline and cancel.

The stubs come from tritonclient; its stream object is not used, as one stream there is one queue with one callback, and
cancelling one request cancels all.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client.request import MODEL, AnswerBuilder, VlmRequest, error_of
from client.types import Answer, AsyncTextStream, TextStream, VlmError

_CUT_OFF = re.compile("Socket closed|Connection reset|recvmsg|Broken pipe|GOAWAY|Stream removed")  # gRPC's own words
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
        call = self._infer(to_message(request).SerializeToString(), timeout=request.timeout_s)
        return _GrpcStream(call, self._address)

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

    def stream(self, request: VlmRequest) -> AsyncTextStream:
        """Send the request; its pieces come from the stream."""
        return self.send(to_message(request).SerializeToString(), request.timeout_s)

    def send(self, message: bytes, timeout_s: float | None) -> AsyncTextStream:
        """As `stream`, of a `to_message` that is serialised already: with pictures that takes milliseconds."""
        return _AsyncGrpcStream(self._infer(message, timeout=timeout_s), self._address)

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
        """Close the channel; running requests are cancelled."""
        await self._channel.close()


class _Pieces:
    """What both streams do with the messages of their call."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._builder = AnswerBuilder()

    @property
    def answer(self) -> Answer:
        return self._builder.answer()

    def _piece(self, message: Any) -> str:
        return self._builder.add(from_message(message))


class _GrpcStream(_Pieces, TextStream):
    def __next__(self) -> str:
        try:
            message = next(self._call, None)
        except grpc.RpcError as error:
            raise to_vlm_error(error, self._address) from error
        if message is None:
            raise StopIteration
        return self._piece(message)

    def close(self) -> None:
        self._call.cancel()


class _AsyncGrpcStream(_Pieces, AsyncTextStream):
    async def __anext__(self) -> str:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise to_vlm_error(error, self._address) from error
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._piece(message)

    async def aclose(self) -> None:
        self._call.cancel()


def _infer(channel: Any) -> Any:
    """Triton's streaming call on a channel, for one request a call.

    To Triton it is a stream of requests; a client that declares a single one sends headers, message and end at once,
    where the generated stub waits for each of the three. It takes serialised messages.
    """
    return channel.unary_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def to_message(request: VlmRequest) -> Any:
    """The request as a ModelInferRequest: BYTES and BOOL tensors as raw contents."""
    message = service_pb2.ModelInferRequest.FromString(_model_and_switches(tuple(request.switches().items())))
    for name, text in request.strings().items():
        _add_input(message, name, "BYTES", [1], _bytes_tensor([text.encode()]))
    if request.images:
        _add_input(message, "image", "BYTES", [len(request.images)], _bytes_tensor(request.images))
    for name, value in request.parameters.items():
        if isinstance(value, int):
            message.parameters[name].int64_param = value
        else:
            message.parameters[name].string_param = value
    return message


@lru_cache(16)  # few combinations, and to parse them takes a third of what it takes to add them one by one
def _model_and_switches(switches: tuple[tuple[str, bool], ...]) -> bytes:
    """What requests have in common, serialised."""
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, on in switches:
        _add_input(message, name, "BOOL", [1], b"\x01" if on else b"\x00")
    return bytes(message.SerializeToString())


def _add_input(message: Any, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.append(raw)


def _bytes_tensor(items: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def from_message(message: Any) -> dict[str, Any]:
    """The outputs of a ModelStreamInferResponse, each one's single value by name.

    Raises:
        VlmError: the response is an error.
    """
    if message.error_message:
        raise error_of(message.error_message)
    response = message.infer_response
    values: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        values[output.name] = raw[4:].decode() if output.datatype == "BYTES" else int.from_bytes(raw, "little")
    return values


def to_vlm_error(error: grpc.RpcError, address: str) -> VlmError:
    """A failed call as the product's error; says what to do when there is no server."""
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
        details = f"no server answers at grpc://{address}; start one with `tvlm serve`, or give its address"
    elif code is grpc.StatusCode.UNAVAILABLE and _CUT_OFF.search(details):
        details = "the server closed the connection before the answer's end"
    return error_of(details, code.name)
