"""What the sync and the async gRPC client share: messages of Triton's protocol, and how a request ends early.

A call that is cancelled while Triton 24.10 writes its answer can crash or lock up all of tritonserver, whose stream
handler and writer take the same locks in opposite orders, or free what the other uses: seen once in 400 to 2,000
cancellations around an answer's end. So what nobody wants any more is stopped by a request of its own (the input
`stop`) and read to its end. Only a server that does not heed it has its call cancelled.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from client.request import MODEL, VlmRequest, error_of
from client.types import VlmError

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels of a process share connections and their waits; a new client must not wait for an older one's.
    ("grpc.use_local_subchannel_pool", 1),
    # A channel that lost its server refuses at once until it has tried again; gRPC's own waits (1 s, then up to
    # 120 s) would outlast the attempts of a request.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
END_S = 0.01  # for a request that is left to end by itself, as most do
STOP_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)  # after each try: a stop may overtake a request that comes with pictures
CLOSE_S = 3.0  # that a client waits at most for the end of what it stopped
_STOP_TIMEOUT_S = 3.0  # of each try; a server that is so slow hangs
_LAST_RESORT_S = 5.0  # after a request's own timeout, for gRPC to cancel it
_CUT_OFF = re.compile("Socket closed|Connection reset|recvmsg|Broken pipe|GOAWAY|Stream removed")  # gRPC's own words


def infer_on(channel: Any) -> Any:
    """Triton's streaming call on a channel, for one request a call.

    To Triton it is a stream of requests; a client that declares a single one sends headers, message and end at once,
    where the generated stub waits for each of the three. It takes serialised messages.
    """
    return channel.unary_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def call_timeout_s(request: VlmRequest) -> float | None:
    """gRPC's own deadline: it cancels, and comes after all else."""
    return None if request.timeout_s is None else request.timeout_s + _LAST_RESORT_S


def send_stop(infer: Any, request_id: str) -> Any:
    """The call that stops the requests with this id."""
    return infer(to_stop_message(request_id), timeout=_STOP_TIMEOUT_S)


def closed() -> VlmError:
    """What the reader of a stream gets that is closed."""
    return VlmError("CANCELLED", "the stream was closed")


def client_closed() -> VlmError:
    """What a request gets that comes too late."""
    return VlmError("CANCELLED", "the client is closed")


def late(timeout_s: float) -> VlmError:
    """What the reader of a stream gets whose time is over."""
    return VlmError("DEADLINE_EXCEEDED", f"no answer within {timeout_s:.3g} s (timeout_s)")


def again(error: VlmError) -> VlmError:
    """An error to raise once more: one that is raised keeps the frames that it went through."""
    return VlmError(error.status, error.message)


def to_message(request: VlmRequest) -> Any:
    """The request as a ModelInferRequest: BYTES and BOOL tensors as raw contents."""
    message = service_pb2.ModelInferRequest.FromString(_model_and_switches(tuple(request.switches().items())))
    message.id = request.request_id
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


def to_stop_message(request_id: str) -> bytes:
    """A serialised ModelInferRequest that ends the requests with this id."""
    message = service_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    _add_input(message, "stop", "BOOL", [1], b"\x01")
    return bytes(message.SerializeToString())


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
