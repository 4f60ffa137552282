"""Long prompts enter the engine in slices, so that a short one waits for a slice and not for the whole of a long one.

The engine prefills first come, first served; a prompt with pictures holds everybody up for seconds on a small machine.
Chunked prefill (Sarathi-Serve, Agrawal et al. 2024, section 4) bounds what a prompt adds to one step; this bounds what
it adds to the wait of those behind it. A slice is a request of its own, of the prompt up to here, that ends with its
first token; the next one finds it in the prefix cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class SliceHandle(Protocol):
    """A slice in the engine."""

    def is_done(self) -> bool:
        """Whether the engine has ended it, in whatever way."""

    def cancel(self) -> None:
        """End it."""


@dataclass
class _Long:
    request_id: int
    embeddings: NDArray[np.float32]  # [1, tokens, hidden]
    done: int = 0


class PrefillSlices:
    """The long prompts of one engine, first come, first served; one slice is in the engine at a time."""

    def __init__(self, slice_tokens: int, start: Callable[[NDArray[np.float32]], SliceHandle]) -> None:
        """`start` hands a slice [1, tokens, hidden] to the engine; `slice_tokens` is whole blocks of its cache."""
        self._slice_tokens = slice_tokens
        self._start = start
        self._waiting: deque[_Long] = deque()
        self._running: SliceHandle | None = None

    def takes(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens goes in slices."""
        return 0 < self._slice_tokens < tokens

    def add(self, request_id: int, embeddings: NDArray[np.float32]) -> None:
        """A long prompt; `next_ready` gives it back when only its last slice is left."""
        self._waiting.append(_Long(request_id, embeddings))

    def cancel(self, request_id: int) -> None:
        """Forget a prompt, and end its slice."""
        if self._running is not None and self._waiting[0].request_id == request_id:
            self._running.cancel()
            self._running = None
        self._waiting = deque(long for long in self._waiting if long.request_id != request_id)

    def next_ready(self) -> tuple[int, Any] | None:
        """Before every step: starts the next slice; a prompt (request id, embeddings) that may go in whole now."""
        if self._running is not None:
            if not self._running.is_done():
                return None
            self._running = None
            self._waiting[0].done += self._slice_tokens
        if not self._waiting:
            return None
        first = self._waiting[0]
        until = first.done + self._slice_tokens
        if until >= first.embeddings.shape[1]:
            self._waiting.popleft()
            return first.request_id, first.embeddings
        self._running = self._start(first.embeddings[:, :until])
        return None
