"""Server-sent events to one client, whatever becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.disconnect import while_connected

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """Sends events as they come, until the client goes away.

    `close` is awaited in the end in every case, also when nothing was sent.
    """

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. What is there already leaves with the headers, in one packet."""
        try:
            async with while_connected(receive):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()
