"""Long prompts enter the engine in slices, so that a short one waits for a slice and not for the whole of a long one.

The engine prefills first come, first served; a prompt with pictures holds everybody up for seconds on a small machine.
Chunked prefill (Sarathi-Serve, Agrawal et al. 2024, section 4) bounds what a prompt adds to one step; this bounds what
it adds to the wait of those behind it. A slice is a request of its own, of the prompt up to here, that ends with its
first token; the next one finds it in the prefix cache.

The prompt with the fewest tokens left goes first (shortest remaining processing time), or a text of five slices would
wait for a prompt with many pictures after all. A prompt of n tokens lets _PATIENCE * n tokens of others pass: none that
comes after those goes before it.
"""

from __future__ import annotations

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


_PATIENCE = 4


@dataclass(eq=False)
class _Long:
    request_id: int
    embeddings: NDArray[np.float32]  # [1, tokens, hidden]
    done: int = 0  # tokens that are in the engine's cache
    passed: int = 0  # tokens of others that went into the engine meanwhile

    def rank(self) -> float:
        """Who has the least goes first."""
        return self.embeddings.shape[1] - self.done - self.passed / _PATIENCE


class PrefillSlices:
    """The long prompts of one engine; one slice is in the engine at a time."""

    def __init__(self, slice_tokens: int, start: Callable[[NDArray[np.float32]], SliceHandle]) -> None:
        """`start` hands a slice [1, tokens, hidden] to the engine; `slice_tokens` is whole blocks of its cache."""
        self._slice_tokens = slice_tokens
        self._start = start
        self._waiting: list[_Long] = []  # in order of arrival
        self._running: tuple[_Long, SliceHandle] | None = None

    def takes(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens goes in slices."""
        return 0 < self._slice_tokens < tokens

    def add(self, request_id: int, embeddings: NDArray[np.float32]) -> None:
        """A long prompt; `next_ready` gives it back when only its last slice is left."""
        self._waiting.append(_Long(request_id, embeddings))

    def cancel(self, request_id: int) -> None:
        """Forget a prompt, and end its slice."""
        if self._running is not None and self._running[0].request_id == request_id:
            self._running[1].cancel()
            self._running = None
        self._waiting = [long for long in self._waiting if long.request_id != request_id]

    def next_ready(self) -> tuple[int, Any] | None:
        """Before every step: starts the next slice; a prompt (request id, embeddings) that may go in whole now."""
        if self._running is not None:
            long, handle = self._running
            if not handle.is_done():
                return None
            self._running = None
            long.done += self._slice_tokens
        if not self._waiting:
            return None
        first = min(self._waiting, key=_Long.rank)
        for other in self._waiting:
            if other is not first:
                other.passed += self._slice_tokens
        until = first.done + self._slice_tokens
        if until >= first.embeddings.shape[1]:
            self._waiting.remove(first)
            return first.request_id, first.embeddings
        self._running = first, self._start(first.embeddings[:, :until])
        return None
