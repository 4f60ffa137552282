"""HTTP/1.1 connections that can't be held open for nothing: uvicorn's, with bounds on time and size of headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.settings import GatewaySettings

_LINGER_S = 5.0
_HEADER_OVERHEAD = 32  # bytes that one more header costs, as HTTP/2 counts them


def protocol_class(settings: GatewaySettings) -> type[HttpToolsProtocol]:
    """uvicorn's protocol for one server with these settings."""
    waiting: dict[BoundedProtocol, None] = {}  # connections without a request, the oldest first

    class Protocol(BoundedProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(settings, waiting, *args, **kwargs)

    return Protocol


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Its headers must be complete within `header_timeout_s` and `header_kb`. A client that takes nothing of its answer
    for `write_timeout_s`, or goes on with a body that is already refused, is cut off. Over `connections`, the
    connection that has waited longest without a request makes place.
    """

    def __init__(
        self, settings: GatewaySettings, waiting: dict[BoundedProtocol, None], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._waiting = waiting
        self._max_header_bytes = settings.header_kb << 10
        self._unparsed_bytes = 0  # since the last request's end, while its successor's headers are not complete
        self._header_bytes = 0
        self._in_headers = True
        self._cut_off: asyncio.TimerHandle | None = None
        self._write_cut_off: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._waiting[self] = None
        self._cut_off_after(self._settings.header_timeout_s)
        if len(self.connections) > self._settings.connections:
            next(iter(self._waiting)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._waiting.pop(self, None)
        self._cut_off_after(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._in_headers:
            if self._unparsed_bytes == 0:
                self._cut_off_after(self._settings.header_timeout_s)
            self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._unparsed_bytes > self._max_header_bytes:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value) + _HEADER_OVERHEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._in_headers = False
        self._waiting.pop(self, None)
        self._cut_off_after(None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has come whole; the next may follow."""
        self._in_headers = True
        self._unparsed_bytes = self._header_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A response has been written."""
        super().on_response_complete()
        if not self._in_headers:
            self._cut_off_after(_LINGER_S)  # an early refusal: read on for so long, or the client would not see it
        elif not self.pipeline:
            self._waiting[self] = None

    def pause_writing(self) -> None:
        """The client takes less than it gets."""
        super().pause_writing()
        if self._write_cut_off is None:
            self._write_cut_off = self.loop.call_later(self._settings.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._write_cut_off is not None:
            self._write_cut_off.cancel()
            self._write_cut_off = None

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._max_header_bytes:
            raise ValueError("headers too large")  # the parser gives up, and uvicorn answers 400

    def _cut_off_after(self, seconds: float | None) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._cut_off = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
