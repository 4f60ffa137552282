"""The clients that users hold: one call signature over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from client.request import VlmRequest, make_request
from client.retry import (
    DEFAULT_RETRY,
    Attempts,
    RetriedAsyncStream,
    RetriedStream,
    RetryPolicy,
    generate,
    generate_async,
)
from client.types import Answer, AsyncTextStream, ImageInput, TextStream, VlmError


class _Transport(Protocol):
    def generate(self, request: VlmRequest) -> Answer: ...

    def stream(self, request: VlmRequest) -> TextStream: ...

    def close(self) -> None: ...


class _AsyncTransport(Protocol):
    async def generate(self, request: VlmRequest) -> Answer: ...

    def stream(self, request: VlmRequest) -> AsyncTextStream: ...

    async def close(self) -> None: ...


class VlmClient:
    """Asks the model `vlm` of a server, `grpc://host:port` or `http(s)://host:port`. Threads may share one.

    Both calls take `text` or `messages` (OpenAI-style; image parts refer to `images` in order), `images` (paths,
    encoded bytes, data: URIs or PIL images) in the order that the question means, and as keywords:
        timeout_s: seconds until the call, attempts and all, fails with DEADLINE_EXCEEDED and the request is stopped.
        priority_class, ttft_slo_ms, deadline_ms: how the server's scheduler treats the request.
        max_tokens, temperature, top_p, top_k, seed, stop, ...: sampling parameters, checked by the server.
    Both raise VlmError. A request that is refused with UNAVAILABLE is sent again as `retry` says, but never once a
    piece of its answer has come.
    """

    def __init__(self, url: str = "grpc://localhost:8001", *, retry: RetryPolicy = DEFAULT_RETRY) -> None:
        scheme, address = parse_url(url)
        self._retry = retry
        self._transport = _open_grpc(address) if scheme == "grpc" else _open_http(f"{scheme}://{address}")

    def generate(self, text: str | None = None, images: Sequence[ImageInput] = (), **options: Any) -> Answer:
        """Ask and wait for the whole answer."""
        request = make_request(text, images, stream=False, **options)
        return generate(self._transport.generate, Attempts(self._retry, request))

    def stream(self, text: str | None = None, images: Sequence[ImageInput] = (), **options: Any) -> TextStream:
        """Ask and get the answer's pieces as they come; closing the stream stops the request."""
        request = make_request(text, images, stream=True, **options)
        return RetriedStream(self._transport.stream, Attempts(self._retry, request))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> VlmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncVlmClient:
    """As VlmClient with coroutines; made and used in one event loop."""

    def __init__(self, url: str = "grpc://localhost:8001", *, retry: RetryPolicy = DEFAULT_RETRY) -> None:
        scheme, address = parse_url(url)
        self._retry = retry
        self._transport = _open_grpc_async(address) if scheme == "grpc" else _open_http_async(f"{scheme}://{address}")

    async def generate(self, text: str | None = None, images: Sequence[ImageInput] = (), **options: Any) -> Answer:
        """Ask and wait for the whole answer."""
        request = make_request(text, images, stream=False, **options)
        return await generate_async(self._transport.generate, Attempts(self._retry, request))

    def stream(self, text: str | None = None, images: Sequence[ImageInput] = (), **options: Any) -> AsyncTextStream:
        """Ask and get the answer's pieces as they come; closing the stream stops the request."""
        request = make_request(text, images, stream=True, **options)
        return RetriedAsyncStream(self._transport.stream, Attempts(self._retry, request))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncVlmClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def parse_url(url: str) -> tuple[str, str]:
    """Split a server's URL into scheme and host:port.

    Raises:
        VlmError: (INVALID_ARGUMENT) it is neither grpc:// nor http(s)://, or has no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("grpc", "http", "https") or not parts.netloc:
        raise VlmError("INVALID_ARGUMENT", f"url: expected grpc://host:port or http://host:port, got {url}")
    return parts.scheme, parts.netloc


def _open_grpc(address: str) -> _Transport:
    from client.grpc_client import GrpcTransport  # noqa: PLC0415  (gRPC takes 0.2 s to import)

    return GrpcTransport(address)


def _open_http(base_url: str) -> _Transport:
    from client.http_client import HttpTransport  # noqa: PLC0415  (so that gRPC users need no urllib3)

    return HttpTransport(base_url)


def _open_grpc_async(address: str) -> _AsyncTransport:
    from client.grpc_async import AsyncGrpcTransport  # noqa: PLC0415  (gRPC takes 0.2 s to import)

    return AsyncGrpcTransport(address)


def _open_http_async(base_url: str) -> _AsyncTransport:
    from client.http_async import AsyncHttpTransport  # noqa: PLC0415  (aiohttp takes as long)

    return AsyncHttpTransport(base_url)
