"""Visual tokens for images, encoded once: shared while in flight, kept in the embedding pool afterwards."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from python_backends import metrics
from python_backends.embeddings.page_table import Entry
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.errors import ServingError
from python_backends.metrics import Metrics
from python_backends.router.calls import BlockingCalls, with_retry
from python_backends.router.stages import Embedding, Stages

log = logging.getLogger(__name__)

_IN_POOL: NDArray[np.float16] = np.zeros((0, 0), np.float16)


@dataclass(frozen=True)
class Picture:
    """One image file, checked by its header."""

    data: bytes
    key: bytes  # of the pool
    tokens: int  # visual tokens that it will become
    alone: bool = True  # in its request
    grid: tuple[int, int] = (0, 0)  # rows and columns of the tokens, where positions follow them


@dataclass(frozen=True)
class Visual:
    """A picture's visual tokens, held for one request: in pages, or loose when the pool had no room for them."""

    tokens: int
    entry: Entry | None
    loose: NDArray[np.float16] | None  # [tokens, hidden]
    decode_ms: float = 0.0  # 0: it was in the pool
    encode_ms: float = 0.0
    ready_s: float = 0.0  # monotonic


@dataclass(eq=False)
class _Flight:
    """One call for a picture, and whoever waits for it."""

    entry: Entry | None  # held by the flight until the task is done
    begun: bool = False  # the call has a thread, and can't be stopped any more
    waiters: int = 0
    abandoned: bool = False
    task: asyncio.Task[Embedding] = field(init=False)


class Encoder:
    """For all requests of the router; on its event loop."""

    def __init__(self, stages: Stages, threads: int, pool: EmbeddingPool, metrics: Metrics) -> None:
        self.pool = pool
        self._stages = stages
        self._metrics = metrics
        self._flights: dict[bytes, _Flight] = {}
        self._evicted = 0  # as it was recorded last
        self._calls = BlockingCalls(threads, "image_embedding")  # a BLS call blocks its thread

    def known(self, picture: Picture) -> Visual | None:
        """What the pool has; release it."""
        entry = self.pool.find(picture.key)
        return None if entry is None else Visual(entry.tokens, entry, None, ready_s=time.monotonic())

    async def obtain(self, picture: Picture) -> Visual:
        """From the pool, from whoever encodes the same picture already, or from the stages; release it (ServingError).

        When the pool's pages are all held by running requests, the tokens stay loose: a small pool answers everything.
        """
        visual = self.known(picture)
        if visual is not None:
            return visual
        flight = self._flights.get(picture.key) or self._start(picture)
        if flight.entry is not None:
            self.pool.hold(flight.entry)
        flight.waiters += 1
        try:
            # shielded: a call that runs can't be stopped, and others may wait for the same picture
            done = await asyncio.shield(flight.task)
        except BaseException:
            self._release(flight.entry)
            if flight.waiters == 1 and not flight.begun and not flight.task.done():
                self._abandon(picture.key, flight)
            raise
        finally:
            flight.waiters -= 1
        loose = done.visual_tokens if flight.entry is None else None
        return Visual(picture.tokens, flight.entry, loose, done.decode_ms, done.encode_ms, done.ready_s)

    def release(self, visual: Visual) -> None:
        """A request needs it no longer; in the pool it stays until others need the room."""
        self._release(visual.entry)

    def close(self) -> None:
        """No more calls."""
        self._calls.close()
        self.pool.close()

    def _start(self, picture: Picture) -> _Flight:
        flight = _Flight(self.pool.allocate(picture.key, picture.tokens))
        flight.task = asyncio.create_task(self._encode(picture, flight))
        self._flights[picture.key] = flight
        flight.task.add_done_callback(lambda done: self._land(picture.key, flight))
        return flight

    def _abandon(self, key: bytes, flight: _Flight) -> None:
        """Nobody wants it any more, and it has not begun: it never will, and who wants it again starts anew."""
        flight.abandoned = True
        flight.task.cancel()
        self._forget(key, flight)

    def _land(self, key: bytes, flight: _Flight) -> None:
        if not flight.abandoned:
            self._forget(key, flight)
        self._release(flight.entry)

    def _forget(self, key: bytes, flight: _Flight) -> None:
        del self._flights[key]
        if flight.entry is not None and not flight.entry.filled:
            self.pool.forget(flight.entry)

    def _release(self, entry: Entry | None) -> None:
        if entry is None:
            return
        self.pool.release(entry)
        usage = self.pool.usage
        for state in ("held", "kept", "free"):
            self._metrics.record(metrics.PAGES, getattr(usage, state), state=state)
        self._metrics.record(metrics.EVICTIONS, self.pool.evicted - self._evicted)
        self._evicted = self.pool.evicted

    async def _encode(self, picture: Picture, flight: _Flight) -> Embedding:
        # what the encoder writes itself is held until its call has come back, however it ends
        target = None if flight.entry is None else self.pool.target(flight.entry)

        def embed() -> Embedding:
            flight.begun = True
            return self._stages.embed(picture.data, picture.alone, target)

        embedding = await with_retry(lambda: self._calls.run(embed), self._on_retry)
        if flight.entry is None:
            return embedding
        if target is not None and not len(embedding.visual_tokens):
            self.pool.written(flight.entry)
        else:
            # here and not in the thread: a call that was given up must not write into what are another's pages by now
            self.pool.fill(flight.entry, embedding.visual_tokens)
        return replace(embedding, visual_tokens=_IN_POOL)  # Triton's memory goes back now

    def _on_retry(self, error: ServingError) -> None:
        log.warning("encoding again after: %s", error.message)
        self._metrics.record(metrics.RETRIES, 1, stage="encode")
