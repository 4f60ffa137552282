"""Work that grows with what a client sent, beside the event loop, so that it does not stand still for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_LITTLE = 65_536  # bytes, done within a millisecond: less than to hand it over and back costs on a busy machine
_threads = ThreadPoolExecutor(2, "aside")


async def aside(size: int, work: Callable[[], _T]) -> _T:
    """The result of `work` on `size` bytes, on a thread when there are many."""
    if size <= _LITTLE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
