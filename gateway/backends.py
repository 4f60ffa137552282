"""The Triton servers behind the gateway: which are healthy, which has least to do, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from client.api import parse_url
from client.grpc_async import AsyncGrpcStream, AsyncGrpcTransport
from client.grpc_protocol import to_message
from client.request import VlmRequest
from client.types import Answer, VlmError
from gateway.aside import aside
from gateway.translate import Asked

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two looks at a server
CHECK_TIMEOUT_S = 3.0
SILENT_CHECKS = 3  # a busy server may be late; one that misses so many is lost
_WARM_S = 120.0


class Health(Enum):
    """What a server can be used for."""

    LOST = "lost"  # it doesn't answer: what ran there is over
    NOT_READY = "not ready"  # it answers, but takes nothing new: it starts, or drains
    READY = "ready"


class Server:
    """One Triton server, over one multiplexed connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.health = Health.LOST
        self.pending_tokens = 0
        self._transport = AsyncGrpcTransport(parse_url(url)[1])
        self._calls: set[Call] = set()
        self._silent = 0
        self._warm = False
        self._look_now = asyncio.Event()

    @property
    def running(self) -> int:
        """Calls in it now."""
        return len(self._calls)

    def call(self, asked: Asked, message: bytes, left_s: float) -> Call:
        """Send a request to this server, as `message`; `left_s` seconds are left for its answer."""
        stream = self._transport.send(message, replace(asked.request, timeout_s=left_s))
        return Call(self, stream, asked, self._calls)

    def suspect(self) -> None:
        """Something failed there: look at once."""
        self._look_now.set()

    def give_up(self, reason: str) -> None:
        """End what runs there; whoever reads gets the reason."""
        for call in tuple(self._calls):
            call.give_up(VlmError("UNAVAILABLE", reason))

    async def watch(self) -> None:
        """Look at it until cancelled."""
        while True:
            await self._look()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), CHECK_S)
            self._look_now.clear()

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        await self._transport.close()

    async def _look(self) -> None:
        try:
            ready = await self._transport.is_ready(CHECK_TIMEOUT_S)
        except VlmError as error:
            self._silent += 1
            if error.status != "DEADLINE_EXCEEDED" or self._silent >= SILENT_CHECKS:
                self._lose(error.message)
            return
        self._silent = 0
        if ready and not self._warm:
            ready = self._warm = await self._answers()
        self._become(Health.READY if ready else Health.NOT_READY)

    async def _answers(self) -> bool:
        """Whether it answers a request: a server is ready when all of its stages are."""
        try:
            warm_up = VlmRequest(stream=False, text="Hi", sampling='{"max_tokens": 1}', timeout_s=_WARM_S)
            await self._transport.generate(warm_up)
        except VlmError as error:
            log.warning("%s is ready but does not answer: %s", self.url, error.message)
            return False
        return True

    def _lose(self, reason: str) -> None:
        self._become(Health.LOST, reason)
        self._warm = False
        self.give_up("the server that worked on the answer is gone")

    def _become(self, health: Health, reason: str = "") -> None:
        if health is not self.health:
            log.warning("%s is %s%s", self.url, health.value, f": {reason}" if reason else "")
            self.health = health


class Call:
    """One request in one server: its pieces as they come. Close it in every case: before its end that stops it."""

    def __init__(self, server: Server, stream: AsyncGrpcStream, asked: Asked, calls: set[Call]) -> None:
        self.server = server
        self._stream = stream
        self._tokens = asked.tokens
        self._late = asked.late
        self._calls = calls
        server.pending_tokens += asked.tokens
        calls.add(self)

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return self._stream.answer

    async def read(self) -> str | None:
        """The next piece, None after the last (VlmError)."""
        try:
            return await anext(self._stream, None)
        except VlmError as error:
            if error.status == "DEADLINE_EXCEEDED":
                raise VlmError(error.status, self._late) from None
            raise

    def give_up(self, error: VlmError) -> None:
        """Stop it; whoever reads gets the error."""
        self._stream.leave(error)

    async def aclose(self) -> None:
        """Give back its share of the server."""
        if self in self._calls:
            self._calls.remove(self)
            self.server.pending_tokens -= self._tokens
            await self._stream.aclose()


class Pool:
    """All servers. A context manager: watched inside, closed after it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.servers = [Server(url) for url in urls]
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Pool:
        self._watchers = [asyncio.create_task(server.watch()) for server in self.servers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.servers))

    @property
    def ready(self) -> bool:
        """Whether some server takes requests."""
        return any(server.health is Health.READY for server in self.servers)

    async def start(self, asked: Asked, arrived_s: float, meanwhile: Callable[[], object]) -> tuple[Call, str | None]:
        """The call that answers a request that arrived at `arrived_s` (time.monotonic), and its first piece.

        `meanwhile` is done when it is sent: until the first piece comes there is time.

        A server that can't take it, or dies before the first piece, is left for the next (VlmError of the last one).
        """
        left = self._ready_but()
        if not left:
            raise VlmError("UNAVAILABLE", "no server is ready")
        tried: list[Server] = []
        deadline = arrived_s + asked.timeout_s
        message = await aside(asked.request.image_bytes, lambda: to_message(asked.request).SerializeToString())
        while True:
            server = min(left, key=lambda server: server.pending_tokens)
            tried.append(server)
            call = server.call(asked, message, max(0.0, deadline - time.monotonic()))
            asyncio.get_running_loop().call_soon(meanwhile)  # next in turn is the call's own task, which sends
            try:
                return call, await call.read()
            except VlmError as error:
                await call.aclose()
                left = self._ready_but(*tried)  # one may have come meanwhile
                if error.status != "UNAVAILABLE" or not left:
                    raise
                server.suspect()
                log.warning("%s: asking another server after: %s", server.url, error.status)
            except BaseException:
                await call.aclose()
                raise

    def _ready_but(self, *tried: Server) -> list[Server]:
        return [server for server in self.servers if server.health is Health.READY and server not in tried]
