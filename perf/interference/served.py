"""Sends the workload to a server in an open loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from client import AsyncVlmClient, RetryPolicy, VlmError
from perf.interference.workload import TOKENS, Request, Seen


async def send(url: str, requests: Sequence[Request], timeout_s: float = 300.0) -> list[Seen]:
    """Every request at its time, over one connection."""
    async with AsyncVlmClient(url, retry=RetryPolicy(attempts=1)) as vlm:
        begin = time.monotonic() + 0.2
        return list(await asyncio.gather(*(_one(vlm, request, begin, timeout_s) for request in requests)))


async def _one(vlm: AsyncVlmClient, request: Request, begin: float, timeout_s: float) -> Seen:
    at = begin + request.at_s
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    seen, last = Seen(bool(request.images)), 0.0
    try:
        stream = vlm.stream(request.text, request.images, max_tokens=TOKENS, ignore_eos=True, timeout_s=timeout_s)
        async for piece in stream:
            if not piece:
                continue
            now = time.monotonic()
            if last:
                seen.gaps_s.append(now - last)
            else:
                seen.ttft_s = now - at
            last = now
        seen.total_s = time.monotonic() - at
    except VlmError as error:
        seen.error = f"{error.status}: {error.message}"
    return seen
