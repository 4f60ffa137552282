"""Requests to and responses of the model `vlm` as messages of Triton's gRPC protocol."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from client.request import MODEL, VlmRequest, error_of
from client.types import VlmError

_CUT_OFF = re.compile("Socket closed|Connection reset|recvmsg|Broken pipe|GOAWAY|Stream removed")  # gRPC's own words


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
