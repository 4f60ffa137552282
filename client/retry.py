"""When a refused request is sent again: pure decisions here, waiting and sending in the loops below.

Only UNAVAILABLE is tried again (the server is full, draining, restarting or away; the same request may succeed later),
and never once a piece of the answer has come. Waits grow and are random between nothing and their bound ("full jitter",
Brooker, Exponential Backoff And Jitter, AWS Architecture Blog 2015), so that refused clients do not come back together.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from client.request import VlmRequest, new_request_id
from client.types import Answer, AsyncTextStream, TextStream, VlmError

_HINT_SPREAD = 0.25  # a hint is the least wait; the share that is added at random on top of it


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently: `attempts` in all (1: never again), waits in seconds.

    The bound of the n-th wait is `first_wait_s` x 2^(n-1), at most `longest_wait_s`. A server that says when to come
    back ("retry after 2 s") is taken at its word, unless that is later than `longest_wait_s`.
    """

    attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise VlmError("INVALID_ARGUMENT", f"retry.attempts: at least 1, got {self.attempts}")
        if not 0 <= self.first_wait_s <= self.longest_wait_s:
            waits = f"{self.first_wait_s} and {self.longest_wait_s}"
            raise VlmError("INVALID_ARGUMENT", f"retry: 0 <= first_wait_s <= longest_wait_s must hold, got {waits}")


DEFAULT_RETRY = RetryPolicy()


class Attempts:
    """The attempts of one request, which share its `timeout_s`."""

    def __init__(self, policy: RetryPolicy, request: VlmRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._request = request
        self._clock = clock
        self._deadline = None if request.timeout_s is None else clock() + request.timeout_s
        self._failed = 0

    def request(self) -> VlmRequest:
        """The request with the time that is left to it, and an id of its own: the last one's may yet be stopped."""
        left_s = None if self._deadline is None else max(0.001, self._deadline - self._clock())
        return replace(self._request, timeout_s=left_s, request_id=new_request_id())

    def wait_s(self, error: VlmError) -> float:
        """Seconds to wait before the next attempt; raises `error` when there is to be none."""
        self._failed += 1
        if error.status != "UNAVAILABLE" or self._failed >= self._policy.attempts:
            raise error
        wait = self._next_wait_s(error.retry_after_s)
        too_late = self._deadline is not None and self._clock() + wait >= self._deadline
        if wait > self._policy.longest_wait_s * (1 + _HINT_SPREAD) or too_late:
            raise error
        return wait

    def _next_wait_s(self, hint_s: float | None) -> float:
        if hint_s is not None:
            return hint_s * random.uniform(1, 1 + _HINT_SPREAD)
        bound = min(self._policy.first_wait_s * 2.0 ** (self._failed - 1), self._policy.longest_wait_s)
        return random.uniform(0, bound)


def generate(send: Callable[[VlmRequest], Answer], attempts: Attempts) -> Answer:
    """Send until there is an answer, or an error that stays."""
    while True:
        try:
            return send(attempts.request())
        except VlmError as error:
            time.sleep(attempts.wait_s(error))


class RetriedStream(TextStream):
    """A stream that is opened again while nothing has come of it."""

    def __init__(self, open_stream: Callable[[VlmRequest], TextStream], attempts: Attempts) -> None:
        self._open = open_stream
        self._attempts = attempts
        self._closed = threading.Event()
        self._started = False
        self._stream: TextStream | None = None
        self._stream = self._opened()

    @property
    def answer(self) -> Answer:  # noqa: D102
        return Answer("") if self._stream is None else self._stream.answer

    def __next__(self) -> str:
        while True:
            if self._stream is None:
                raise StopIteration  # closed while it waited
            try:
                piece = next(self._stream)
            except VlmError as error:
                if self._started:
                    raise
                self._wait(error)
                self._stream = self._opened()
            else:
                self._started = True
                return piece

    def close(self) -> None:
        """Stop the request, or the wait for its next attempt."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> TextStream | None:
        while not self._closed.is_set():
            try:
                return self._open(self._attempts.request())
            except VlmError as error:  # over HTTP a refusal comes before the stream
                self._wait(error)
        return None

    def _wait(self, error: VlmError) -> None:
        self._closed.wait(self._attempts.wait_s(error))


async def generate_async(send: Callable[[VlmRequest], Awaitable[Answer]], attempts: Attempts) -> Answer:
    """As `generate`; cancelling the task ends a wait."""
    while True:
        try:
            return await send(attempts.request())
        except VlmError as error:
            await asyncio.sleep(attempts.wait_s(error))


class RetriedAsyncStream(AsyncTextStream):
    """As RetriedStream, in an event loop; cancelling the task ends a wait."""

    def __init__(self, open_stream: Callable[[VlmRequest], AsyncTextStream], attempts: Attempts) -> None:
        self._open = open_stream
        self._attempts = attempts
        self._started = False
        self._stream = open_stream(attempts.request())

    @property
    def answer(self) -> Answer:  # noqa: D102
        return self._stream.answer

    async def __anext__(self) -> str:
        while True:
            try:
                piece = await anext(self._stream)
            except VlmError as error:
                if self._started:
                    raise
                await asyncio.sleep(self._attempts.wait_s(error))
                self._stream = self._open(self._attempts.request())
            else:
                self._started = True
                return piece

    async def aclose(self) -> None:
        """Stop the request."""
        await self._stream.aclose()
