"""How much one key may ask: requests and tokens a minute, and requests at a time."""

from __future__ import annotations

import math
import time
from collections import Counter

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from gateway.errors import ApiError
from gateway.settings import GatewaySettings


class Quotas:
    """Counts by key name, of which there are as many as keys: what strangers send makes it no larger.

    A key that has used up its tokens of this minute waits for the next: an answer's length is known only in the end,
    so a request is let in as long as one token is left, and charged with what it took.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._requests = _per_minute("requests", settings.requests_per_minute)
        self._tokens = _per_minute("tokens", settings.tokens_per_minute)
        self._concurrent = settings.concurrent_requests
        self._running: Counter[str] = Counter()

    async def enter(self, key: str) -> Slot:
        """Begin a request (ApiError, 429 with the time to wait)."""
        if self._running[key] >= self._concurrent:
            message = f"{self._running[key]} requests of this key run already (limit concurrent_requests)"
            raise ApiError(429, message, "rate_limit_exceeded", retry_after_s=1)
        if self._tokens is not None and not await self._limiter.test(self._tokens, key):
            raise await self._refusal(self._tokens, key, "tokens_per_minute")
        if self._requests is not None and not await self._limiter.hit(self._requests, key):
            raise await self._refusal(self._requests, key, "requests_per_minute")
        self._running[key] += 1
        return Slot(self, key)

    async def charge(self, key: str, tokens: int) -> None:
        """Tokens that a request took."""
        if self._tokens is not None:
            await self._limiter.hit(self._tokens, key, cost=tokens)

    def leave(self, key: str) -> None:
        """A request is over."""
        self._running[key] -= 1

    async def _refusal(self, item: RateLimitItem, key: str, name: str) -> ApiError:
        wait_s = max(1, math.ceil((await self._limiter.get_window_stats(item, key)).reset_time - time.time()))
        message = (
            f"this key's {item.amount:,} {item.namespace} of the minute are used up (limit {name}); wait {wait_s} s"
        )
        return ApiError(429, message, "rate_limit_exceeded", retry_after_s=wait_s)


class Slot:
    """One running request of a key."""

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._quotas = quotas
        self._key = key
        self._open = True

    async def close(self, tokens: int = 0) -> None:
        """It is over and took so many tokens; only the first call counts."""
        if self._open:
            self._open = False
            self._quotas.leave(self._key)
            if tokens:
                await self._quotas.charge(self._key, tokens)


def _per_minute(what: str, amount: int | None) -> RateLimitItem | None:
    return None if amount is None else RateLimitItemPerMinute(amount, namespace=what)
