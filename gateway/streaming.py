"""Server-sent events to one client, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

Write = Callable[[bytes, bool], Awaitable[None]]  # events, and whether more will come


class EventStream(Response):
    """Sends what `write_events` writes.

    `close` is awaited in the end in every case, also when nothing was sent.
    """

    def __init__(self, write_events: Callable[[Write], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
        self.status_code = 200
        self.raw_headers = list(_HEADERS)  # as they are: what Response makes of others takes its time
        self._write_events = write_events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""

        async def write(events: bytes, more: bool) -> None:
            await send({"type": "http.response.body", "body": events, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write_events(write)
        finally:
            await self._close()
