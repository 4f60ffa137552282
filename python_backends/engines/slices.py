"""Prompts enter the engine in slices, so that a short one waits for a slice and not for the whole of a long one.

The engine prefills first come, first served; a prompt with pictures holds everybody up for seconds on a small machine.
Chunked prefill (Sarathi-Serve, Agrawal et al. 2024, section 4) bounds what a prompt adds to one step; this bounds what
it adds to the wait of those behind it. A slice is a request of its own, of the prompt up to here, that ends with its
first token; the next one finds it in the prefix cache. How much a step takes is `engines.step_size`'s to say; prompts
with pictures don't fill it.

The prompt with the fewest tokens left goes first (shortest remaining processing time), or a text of five slices would
wait for a prompt with many pictures after all. A prompt of n tokens lets `patience` * n tokens of later ones pass: none
that comes after those goes before it. Earlier ones don't count: they would make a long line of pictures one of equals,
with text at its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class SliceHandle(Protocol):
    """A slice in the engine."""

    def is_done(self) -> bool:
        """Whether the engine has ended it, in whatever way."""

    def cancel(self) -> None:
        """End it."""


@dataclass(frozen=True)
class Kind:
    """What a prompt holds, and how it is treated for it."""

    patience: int  # see above
    fills_steps: bool  # or leaves room for text, which comes meanwhile and waits for the step


TEXT = Kind(patience=1, fills_steps=True)  # with more, the longest of the texts would be the one that waits for all
PICTURES = Kind(patience=8, fills_steps=False)


@dataclass(eq=False)
class _Prompt:
    request_id: int
    embeddings: NDArray[np.float32]  # [1, tokens, hidden]
    done: int  # tokens that are in the engine's cache
    number: int  # in order of arrival
    kind: Kind
    passed: int = 0  # tokens of later ones that went into the engine meanwhile

    @property
    def left(self) -> int:
        return self.embeddings.shape[1] - self.done

    def rank(self) -> float:
        """Who has the least goes first."""
        return self.left - self.passed / self.kind.patience


class PrefillSlices:
    """The prompts of one engine that are not in it whole yet; one slice is in the engine at a time."""

    def __init__(
        self, block_tokens: int, of_pictures: int, start: Callable[[NDArray[np.float32]], SliceHandle]
    ) -> None:
        """`start` hands a slice [1, tokens, hidden] to the engine, whose cache has blocks of `block_tokens`.

        `of_pictures`: the most tokens that a step takes of prompts with pictures, at least a block.
        """
        self._block_tokens = block_tokens
        self._of_pictures = of_pictures
        self._start = start
        self._waiting: list[_Prompt] = []  # in order of arrival
        self._numbers = itertools.count()
        self._running: tuple[_Prompt, int, SliceHandle] | None = None  # with where its slice ends

    def add(self, request_id: int, embeddings: NDArray[np.float32], kind: Kind, cached: int = 0) -> None:
        """A prompt, `cached` tokens of which the engine's cache holds; `begin_step` gives it back at its last slice."""
        self._waiting.append(_Prompt(request_id, embeddings, self._whole_blocks(cached), next(self._numbers), kind))

    def cancel(self, request_id: int) -> None:
        """Forget a prompt, and end its slice."""
        if self._running is not None and self._running[0].request_id == request_id:
            self._running[2].cancel()
            self._running = None
        self._waiting = [prompt for prompt in self._waiting if prompt.request_id != request_id]

    def begin_step(self, room: int) -> tuple[list[tuple[int, NDArray[np.float32]]], int]:
        """Fill a step with at most `room` prompt tokens.

        Gives the prompts (request id, embeddings) that go in whole now, and how many prompt tokens the step takes. The
        room that they leave goes to a slice of the next prompt, in whole blocks.
        """
        ready: list[tuple[int, NDArray[np.float32]]] = []
        taken = 0
        while self._slice_is_done() and (first := self._first(room, taken)):
            tokens = self._tokens_of(first, room, taken)
            if tokens == first.left:
                self._waiting.remove(first)
                ready.append((first.request_id, first.embeddings))
            else:
                self._start_slice(first, tokens)
            self._let_pass(first, tokens)
            taken += tokens
        return ready, taken

    def _first(self, room: int, taken: int) -> _Prompt | None:
        """Who goes next into the step, if there is room: of all, else of those that fill steps."""
        for among in (self._waiting, [prompt for prompt in self._waiting if prompt.kind.fills_steps]):
            first = min(among, key=_Prompt.rank, default=None)
            if first is not None and self._tokens_of(first, room, taken):
                return first
        return None

    def _tokens_of(self, prompt: _Prompt, room: int, taken: int) -> int:
        """What of it goes into a step; 0: nothing."""
        most = room if prompt.kind.fills_steps else min(room, self._of_pictures)
        left = max(0, most - taken)
        return prompt.left if prompt.left <= left else self._whole_blocks(left)

    def _slice_is_done(self) -> bool:
        if self._running is not None:
            prompt, end, handle = self._running
            if not handle.is_done():
                return False
            prompt.done, self._running = end, None
        return True

    def _start_slice(self, prompt: _Prompt, tokens: int) -> None:
        end = prompt.done + tokens
        self._running = prompt, end, self._start(prompt.embeddings[:, :end])

    def _let_pass(self, first: _Prompt, tokens: int) -> None:
        for other in self._waiting:
            if other.number < first.number:
                other.passed += tokens

    def _whole_blocks(self, tokens: int) -> int:
        return tokens // self._block_tokens * self._block_tokens
