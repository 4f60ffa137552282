"""Clients that go away. Starlette notices only while it streams, so work before and beside that is watched here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel what is done inside when the client goes away (ClientGone). The request's body must have been read.

    It goes on in the caller's own task: to hand it to another one would cost turns of the event loop before each first
    token.
    """
    working = asyncio.current_task()
    assert working is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        working.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        if hasattr(working, "uncancel"):  # Python 3.11: it was cancelled here only
            working.uncancel()
        raise ClientGone from None
    finally:
        watching.cancel()
