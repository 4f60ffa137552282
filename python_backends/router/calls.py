"""Blocking calls from the event loop: each with a deadline, and again when what it asked was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from python_backends.errors import ServingError, StageGone, Status

_T = TypeVar("_T")

CALL_S = 90.0  # more than the stages' own limits: only a hung stub takes so long
_ORPHAN_S = 5.0  # for calls that were with a stage when others found it gone: a dead stub never answers them
RETURN_S = 180.0  # how long a request without a deadline waits for a stage to be reloaded: an LLM loads for minutes
_LOOK_S = 0.2


class BlockingCalls:
    """A pool of threads for calls that can't be stopped; one that hangs costs its thread, not the pool."""

    def __init__(self, threads: int, name: str, deadline_s: float = CALL_S) -> None:
        self._threads = threads
        self._name = name
        self._deadline_s = deadline_s
        self._pool = ThreadPoolExecutor(threads, name)
        self._gone_s = float("-inf")  # when a call last found the stage gone

    async def run(self, call: Callable[[], _T]) -> _T:
        """The result of `call` (StageGone when it is not there in time)."""
        pool, begin_s = self._pool, time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(pool, call)
        try:
            while not running.done():
                left_s = self._end_s(begin_s) - time.monotonic()
                if left_s <= 0:
                    self._replace(pool)
                    raise StageGone(f"{self._name}: no answer within {round(time.monotonic() - begin_s, 2):g} s")
                await asyncio.wait({running}, timeout=min(left_s, _LOOK_S))
        finally:
            running.cancel()  # one that has not begun never will
        try:
            return running.result()
        except StageGone:
            self._gone_s = time.monotonic()
            raise

    def _end_s(self, begin_s: float) -> float:
        """Until when a call that began then is waited for."""
        end_s = begin_s + self._deadline_s
        return min(end_s, self._gone_s + _ORPHAN_S) if self._gone_s > begin_s else end_s

    def _replace(self, pool: ThreadPoolExecutor) -> None:
        """Leave the pool to the calls that hang in it; what waits there gets its turn as threads come free."""
        if self._pool is pool:
            pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(self._threads, self._name)

    def close(self) -> None:
        """No more calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def with_retry(work: Callable[[], Awaitable[_T]], on_retry: Callable[[ServingError], None]) -> _T:
    """The result of `work`, which is done once more after a worker died, and waited for while a stage is reloaded."""
    retried = False
    give_up_s: float | None = None
    while True:
        try:
            return await work()
        except StageGone as error:
            if give_up_s is None:
                give_up_s = time.monotonic() + RETURN_S
                on_retry(error)
            if time.monotonic() > give_up_s:
                raise
            await asyncio.sleep(_LOOK_S)
        except ServingError as error:
            if retried or error.status is not Status.UNAVAILABLE:
                raise
            retried = True
            on_retry(error)
