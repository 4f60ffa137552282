"""The model `vlm` over gRPC, one server or several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from client.api import parse_url
from client.grpc_protocol import from_message, to_message, to_vlm_error
from client.request import make_request
from perf.load.targets import Chunk, LeastBacklog, Payload, cost_of
from perf.workloads import Request
from perf.workloads.payload import picture_bytes

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class GrpcTarget:
    """Servers at these URLs (grpc://host:port). Make it inside the event loop that uses it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._addresses = [parse_url(url)[1] for url in urls]
        self._channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for address in self._addresses]
        self._stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in self._channels]
        self._router = LeastBacklog(len(urls))

    @staticmethod
    def prepare(request: Request) -> Payload:
        """A ModelInferRequest that asks for exactly `answer_tokens` tokens, streamed."""
        pictures = [picture_bytes(picture) for picture in request.pictures]
        sampling: dict[str, Any] = {
            "max_tokens": request.answer_tokens,
            "min_tokens": request.answer_tokens,
            "ignore_eos": True,
        }
        return Payload(to_message(make_request(request.prompt, pictures, stream=True, **sampling)), cost_of(request))

    async def stream(self, payload: Payload, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send it to the server with the least backlog."""
        with self._router.server(payload.cost) as index:
            messages = iter([payload.message])
            call = self._stubs[index].ModelStreamInfer(messages, timeout=timeout_s)
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    outputs = from_message(message)
                    yield Chunk(
                        outputs.get("text_output", ""),
                        outputs.get("num_input_tokens"),
                        outputs.get("num_output_tokens"),
                    )
            except grpc.RpcError as error:
                raise to_vlm_error(error, self._addresses[index]) from error
            finally:
                call.cancel()

    async def close(self) -> None:
        """Drop the connections."""
        for channel in self._channels:
            await channel.close()
