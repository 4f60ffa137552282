"""The model `vlm` over HTTP in an event loop: Triton's `generate` and `generate_stream`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from client.http_protocol import HEADERS, StreamedAnswer, Timeout, cut_off, nobody_there, outputs_of, refusal, url_of
from client.request import AnswerBuilder, VlmRequest
from client.types import Answer, AsyncTextStream


class AsyncHttpTransport:
    """As HttpTransport, on aiohttp; made and used in one event loop."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http: aiohttp.ClientSession | None = None

    async def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        timeout = Timeout(request.timeout_s)
        builder = AnswerBuilder()
        async with _errors(self.base_url, timeout):
            response = await self.post(request, timeout)
            async with response:
                builder.add(outputs_of(await response.read()))
        return builder.answer()

    def stream(self, request: VlmRequest) -> AsyncTextStream:
        """Send the request; its pieces come from the stream."""
        return _AsyncHttpStream(self, request)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def post(self, request: VlmRequest, timeout: Timeout) -> aiohttp.ClientResponse:
        """Send the request; its response with the body still to be read (VlmError: it is not 200)."""
        if self._http is None:  # aiohttp asks for a running loop
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=HEADERS)
        response = await self._http.post(
            url_of(self.base_url, request),
            json=request.json_body(),
            timeout=aiohttp.ClientTimeout(total=timeout.timeout_s),
        )
        if response.status != 200:
            async with response:
                raise refusal(response.status, await response.read())
        return response


class _AsyncHttpStream(AsyncTextStream):
    def __init__(self, transport: AsyncHttpTransport, request: VlmRequest) -> None:
        self._transport = transport
        self._request = request
        self._timeout = Timeout(request.timeout_s)
        self._response: aiohttp.ClientResponse | None = None
        self._received = StreamedAnswer()

    @property
    def answer(self) -> Answer:
        return self._received.answer

    async def __anext__(self) -> str:
        try:
            async with _errors(self._transport.base_url, self._timeout):
                while not self._received.has_next:
                    self._received.feed(await self._chunk())
            return self._received.next_text()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._response is not None:
            self._response.close()

    async def _chunk(self) -> bytes:
        if self._response is None:
            self._response = await self._transport.post(self._request, self._timeout)
        chunk = await self._response.content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk


@asynccontextmanager
async def _errors(base_url: str, timeout: Timeout) -> AsyncIterator[None]:
    """Failures of the connection in the product's terms."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise nobody_there(base_url) from error
    except asyncio.TimeoutError as error:
        raise timeout.error() from error
    except aiohttp.ClientError as error:
        raise cut_off() from error
