"""Memory for what clients send: bodies and fetched images together have one bound."""

from __future__ import annotations

from types import TracebackType

from gateway.errors import overloaded


class Budget:
    """Bytes held for requests that are not answered yet."""

    def __init__(self, limit_mb: float) -> None:
        self._limit_mb = limit_mb
        self._held = 0

    def lease(self) -> Lease:
        """One request's part of it; given back at the end of the `with` block."""
        return Lease(self)

    def take(self, size: int) -> None:
        """Hold more (ApiError, 503)."""
        if self._held + size > self._limit_mb * 1_000_000:
            raise overloaded(f"what clients send takes all of bodies_mb = {self._limit_mb:g} already; try again")
        self._held += size

    def give_back(self, size: int) -> None:
        """Hold less."""
        self._held -= size


class Lease:
    """See `Budget.lease`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._size = 0

    def take(self, size: int) -> None:
        """Hold more (ApiError, 503)."""
        self._budget.take(size)
        self._size += size

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._budget.give_back(self._size)
