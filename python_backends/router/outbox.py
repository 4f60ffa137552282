"""Sends the pieces of all streams, one at a time.

Every response is a round trip from the stub to tritonserver. While more tokens come than can be answered one by one,
those of a stream gather until its turn, and leave together; when there is time, every token leaves at once. Between
two responses the event loop does all else, so reports of the engines are taken up meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

log = logging.getLogger(__name__)


class Stream(Protocol):
    """What has something to send."""

    def flush(self) -> None:
        """Send what is there; nothing when there is nothing any more."""


class Outbox:
    """First come, first served; a stream is in it at most once. Lives on one event loop."""

    def __init__(self) -> None:
        self._ready: deque[Stream] = deque()
        self._waiting: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: Stream) -> None:
        """Flush this stream soon."""
        if stream in self._waiting:
            return
        self._waiting.add(stream)
        self._ready.append(stream)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._ready:
            stream = self._ready.popleft()
            self._waiting.discard(stream)
            try:
                stream.flush()
            except Exception:
                log.exception("a piece could not be sent")
            await asyncio.sleep(0)
        self._task = None
