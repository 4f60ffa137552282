"""A baseline behind the same gRPC call as the product: Triton's ModelStreamInfer for the model `vlm`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from perf.baselines.loop import Job
from python_backends.checkpoint import load_checkpoint
from python_backends.deployment import load_built_deployment
from python_backends.errors import ServingError, invalid
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.router.prompt import PromptBuilder
from python_backends.router.request import VlmRequest, parse_request
from python_backends.router.text import TextAssembler

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_Piece = tuple[list[int], bool, str]  # OnTokens


class JobTaker(Protocol):
    """What answers: a TokenLoop, or an outside engine."""

    def add(self, job: Job) -> None:
        """Take a job; its tokens come to its callback. Thread-safe."""


class VlmService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Prompt, media decode and detokenisation as the product does them; the rest is the token loop's."""

    def __init__(self, artifacts: Path, loop: JobTaker, threads: int) -> None:
        self._checkpoint = load_checkpoint(artifacts)
        self._limits = load_built_deployment(artifacts).limits
        self._tokenizer = Tokenizer.from_file(str(artifacts / "tokenizer.json"))
        template = (artifacts / "chat_template.jinja").read_text()
        self._prompts = PromptBuilder(self._tokenizer, template, self._checkpoint.image_token)
        self._loop = loop
        self._decoders = ThreadPoolExecutor(threads)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """There is nothing to wait for once this runs."""
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelStreamInfer(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        """One request a stream, as the product's client sends them."""
        async for message in request_iterator:
            try:
                request = parse_request(_arrays(message), self._limits, self._checkpoint.image_token)
                async for response in self._answer(request):
                    yield response
            except ServingError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)

    async def _answer(self, request: VlmRequest) -> AsyncIterator[Any]:
        prompt = self._prompts.build(request.messages)
        tiles = await self._tiles(request.images)
        pieces: asyncio.Queue[_Piece] = asyncio.Queue()
        events = asyncio.get_running_loop()

        def on_tokens(tokens: list[int], last: bool, error: str) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and the client with it
                events.call_soon_threadsafe(pieces.put_nowait, (tokens, last, error))

        job = Job(prompt, tiles, request.sampling, on_tokens)
        self._loop.add(job)
        assembler = TextAssembler(self._tokenizer, request.sampling.stop)
        visual = len(tiles) * self._checkpoint.tokens_per_tile
        count, last, text = 0, False, ""
        try:
            while not last:
                tokens, last, error = await pieces.get()
                if error:
                    raise invalid("request", error)
                count += len(tokens)
                text += assembler.feed(tokens) + (assembler.finish() if last else "")
                if text and not last:
                    yield _response(text)
                    text = ""
        finally:
            job.cancelled = not last  # the client went away: as the product, compute nothing for nobody
        yield _response(text, prompt.text_tokens + visual, count)

    async def _tiles(self, images: list[bytes | memoryview]) -> NDArray[np.uint8]:
        side, limits = self._checkpoint.image_size, ImageLimits.of(self._limits)
        run = asyncio.get_running_loop().run_in_executor
        tiles = await asyncio.gather(*(run(self._decoders, decode, bytes(image), side, limits) for image in images))
        return np.stack(tiles) if tiles else np.zeros((0, side, side, 3), np.uint8)


async def start(service: VlmService, port: int) -> tuple[Any, int]:
    """A gRPC server on 127.0.0.1 that answers, and its port; `port` 0 takes a free one."""
    server = grpc.aio.server(options=_OPTIONS)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def _arrays(message: Any) -> dict[str, NDArray[Any]]:
    """The input tensors as the product's router sees them."""
    return {
        tensor.name: deserialize_bytes_tensor(raw) if tensor.datatype == "BYTES" else np.frombuffer(raw, np.bool_)
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def _response(text: str, input_tokens: int | None = None, output_tokens: int | None = None) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.model_name = "vlm"
    data = text.encode()
    _add(response, "text_output", "BYTES", len(data).to_bytes(4, "little") + data)
    for name, value in (("num_input_tokens", input_tokens), ("num_output_tokens", output_tokens)):
        if value is not None:
            _add(response, name, "UINT32", value.to_bytes(4, "little"))
    return message


def _add(response: Any, name: str, datatype: str, raw: bytes) -> None:
    response.outputs.add(name=name, datatype=datatype, shape=[1])
    response.raw_output_contents.append(raw)
