"""HTTP/1.1 connections that can't be held open for nothing: uvicorn's, with bounds on time and size of headers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.interruption import Connection
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
    connection that has waited longest without a request makes place. Requests find it as `connection` in their state.
    """

    def __init__(
        self, settings: GatewaySettings, waiting: dict[BoundedProtocol, None], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._waiting = waiting
        self._max_header_bytes = settings.header_kb << 10
        self._connection = Connection()
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._offer = b""  # the head of a request that offers another protocol, without that offer
        self._cycles: deque[RequestResponseCycle] = deque()  # of the requests that came, while they are not answered
        self._unparsed_bytes = 0  # since the last request's end, while its successor's headers are not complete
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
        for cycle in self._cycles:  # uvicorn tells the last one only: the others would be answered
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        self._connection.lose()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._in_headers:
            if self._unparsed_bytes == 0:
                self._cut_off_after(self._settings.header_timeout_s)
            self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._unparsed_bytes > self._max_header_bytes:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request line has begun."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self._connection

    def on_headers_complete(self) -> None:
        """A request begins."""
        size = len(self.url) + sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in self.headers)
        if size > self._max_header_bytes:  # all came in one read
            raise ValueError("headers too large")  # the parser gives up, and uvicorn answers 400
        if self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers):
            kept = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
            line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            self._offer = b"\r\n".join([line, *kept, b"", b""])
            return
        self._in_headers = False
        self._waiting.pop(self, None)
        self._cut_off_after(None)
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        if self.scope["method"] == "POST":  # others may have no body
            self.cycle.transport = _HeadWithBody(self.transport, self.cycle)

    def take_offer(self) -> bytes:
        """The head to go on with where the parser stopped; empty if there was no header Upgrade."""
        offer, self._offer = self._offer, b""
        return offer

    def on_message_complete(self) -> None:
        """A request has come whole; the next may follow."""
        if self._offer:  # it begins once more
            return
        self._in_headers = True
        self._unparsed_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A response has been written."""
        self._cycles.popleft()
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

    def _cut_off_after(self, seconds: float | None) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._cut_off = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _Parser(httptools.HttpRequestParser):
    """Goes on where llhttp stops: at an offer to change the protocol (Upgrade), which is ignored (RFC 9110, 7.8)."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Bytes of requests."""
        rest = memoryview(data)
        while rest:
            try:
                super().feed_data(rest)
                return
            except httptools.HttpParserUpgrade as stop:
                head = self._protocol.take_offer()
                if not head:  # CONNECT
                    raise
                super().feed_data(head)
                rest = rest[stop.args[0] :]


class _HeadWithBody(asyncio.Transport):
    """A response's head waits for the begin of its body, so that both leave in one packet."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._transport = transport
        self._cycle = cycle
        self._head = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Something of the response, or what is said before it (100 Continue)."""
        if self._cycle.response_started and not self._head:
            self._head = data
            return
        if self._head:
            self._cycle.transport = self._transport  # from here on everything leaves at once
        self._transport.write(self._head + data)

    def is_closing(self) -> bool:
        """As the transport."""
        return self._transport.is_closing()

    def close(self) -> None:
        """As the transport."""
        self._transport.close()
