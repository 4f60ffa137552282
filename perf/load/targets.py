"""Where load goes: the model `vlm` over gRPC, one server or several behind a least-backlog router.

A target prepares its messages before the run, so that a run measures the server and not the making of payloads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from client.api import parse_url
from client.grpc_client import from_message, to_message, to_vlm_error
from client.request import make_request
from perf.workloads import Request
from perf.workloads.payload import picture_bytes

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_METADATA = (("triton_grpc_error", "true"),)  # keeps the status of errors in streams


@dataclass(frozen=True)
class Chunk:
    """One response: its text, and the server's token counts with the last one."""

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None


class Target(Protocol):
    """Something that answers requests."""

    def prepare(self, request: Request) -> Any:
        """What is sent for a request, made before the run."""

    def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send it; the responses as they come. Raises VlmError."""

    async def close(self) -> None:
        """Drop the connections."""


@dataclass
class _Server:
    address: str
    stub: Any
    channel: Any
    backlog: int = 0  # cost of what it was given and has not answered


class GrpcTarget:
    """Servers at these URLs (grpc://host:port). With several, each request goes to the one with the least backlog.

    A request's backlog is its prompt bytes: text, and pictures in full, which is what they cost to a first order.
    Make it inside the event loop that uses it.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = []
        for url in urls:
            address = parse_url(url)[1]
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            self._servers.append(_Server(address, service_pb2_grpc.GRPCInferenceServiceStub(channel), channel))

    @staticmethod
    def prepare(request: Request) -> Any:
        """A ModelInferRequest that asks for exactly `answer_tokens` tokens, streamed."""
        pictures = [picture_bytes(picture) for picture in request.pictures]
        sampling: dict[str, Any] = {
            "max_tokens": request.answer_tokens,
            "min_tokens": request.answer_tokens,
            "ignore_eos": True,
        }
        return to_message(make_request(request.prompt, pictures, stream=True, **sampling))

    async def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send it to the server with the least backlog."""
        server = min(self._servers, key=lambda server: server.backlog)
        cost = payload.ByteSize()
        server.backlog += cost
        call = server.stub.ModelStreamInfer(iter([payload]), timeout=timeout_s, metadata=_METADATA)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                outputs = from_message(message)
                yield Chunk(
                    outputs.get("text_output", ""), outputs.get("num_input_tokens"), outputs.get("num_output_tokens")
                )
        except grpc.RpcError as error:
            raise to_vlm_error(error, server.address) from error
        finally:
            server.backlog -= cost
            call.cancel()

    async def close(self) -> None:
        """Drop the connections."""
        for server in self._servers:
            await server.channel.close()
