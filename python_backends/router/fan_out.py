"""Per-image fan-out: every image of a request is its own call, in flight as soon as the scheduler lets it.

The same image in flight or in the cache is encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from python_backends import metrics
from python_backends.embeddings.cache import EmbeddingCache, image_key
from python_backends.errors import ServingError, Status
from python_backends.media.limits import ImageLimits
from python_backends.media.payload import unwrap
from python_backends.media.sniff import read_header
from python_backends.metrics import Metrics
from python_backends.router.dispatch import Ticket
from python_backends.router.stages import Embedding, Stages

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """One image of a request, checked by its header; `known` are its visual tokens when they are in the cache."""

    data: bytes
    key: bytes
    known: NDArray[np.float16] | None


class FanOut:
    """Encodes the images of all requests."""

    def __init__(
        self, stages: Stages, threads: int, cache: EmbeddingCache, limits: ImageLimits, metrics: Metrics
    ) -> None:
        self._stages = stages
        self._cache = cache
        self._limits = limits
        self._metrics = metrics
        self._in_flight: dict[bytes, asyncio.Task[Embedding]] = {}
        self._threads = ThreadPoolExecutor(threads, "embed")  # a BLS call blocks its thread

    def look_up(self, images: Sequence[bytes]) -> list[Picture]:
        """Check the images without decoding them, and find those that were encoded before.

        Raises:
            ServingError: INVALID_ARG, naming the index of the image.
        """
        pictures = []
        for index, image in enumerate(images):
            try:
                data = unwrap(image, self._limits)
                read_header(data, self._limits)
            except ServingError as error:
                raise _at(index, error) from None
            key = image_key(data)
            pictures.append(Picture(data, key, self._cache.get(key)))
        if pictures:
            self._metrics.record(metrics.CACHE_QUERIES, len(pictures))
            self._metrics.record(metrics.CACHE_HITS, sum(p.known is not None for p in pictures))
        return pictures

    async def embed(self, pictures: Sequence[Picture], ticket: Ticket) -> list[Embedding]:
        """All images of one request, results by position. The ticket's items are the images not known yet, in order.

        Raises:
            ServingError: the first failure, naming the image's index; its siblings are given up.
        """
        results: list[Embedding | None] = [
            None if p.known is None else Embedding(p.known, 0.0, 0.0, time.monotonic()) for p in pictures
        ]
        unknown = [index for index, picture in enumerate(pictures) if picture.known is None]
        tasks = [asyncio.create_task(self._embed_one(i, pictures[i], n, ticket)) for n, i in enumerate(unknown)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        for index, task in zip(unknown, tasks, strict=True):
            results[index] = task.result()
        return [result for result in results if result is not None]

    def close(self) -> None:
        """No more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _embed_one(self, index: int, picture: Picture, item: int, ticket: Ticket) -> Embedding:
        await ticket.encode_turn(item)
        try:
            # shielded: a call that runs can't be stopped, and others may wait for the same image
            embedding = await asyncio.shield(self._shared(picture))
        except ServingError as error:
            raise _at(index, error) from None
        ticket.encoded(item)
        return embedding

    def _shared(self, picture: Picture) -> asyncio.Task[Embedding]:
        """The one call for this image, whoever asked first."""
        task = self._in_flight.get(picture.key)
        if task is None:
            task = self._in_flight[picture.key] = asyncio.create_task(self._call(picture.data))
            task.add_done_callback(lambda done: self._keep(picture.key, done))
        return task

    def _keep(self, key: bytes, done: asyncio.Task[Embedding]) -> None:
        del self._in_flight[key]
        if not done.cancelled() and done.exception() is None:
            self._cache.put(key, done.result().visual_tokens)
            self._metrics.record(metrics.CACHE_BYTES, self._cache.bytes)

    async def _call(self, image: bytes) -> Embedding:
        """One image through the stages; again, once, when the worker that had it died."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._stages.embed, image)
        except ServingError as error:
            if error.status is not Status.UNAVAILABLE:
                raise
            log.warning("encoding again after: %s", error.message)
            self._metrics.record(metrics.RETRIES, 1, stage="encode")
            return await loop.run_in_executor(self._threads, self._stages.embed, image)


def _at(index: int, error: ServingError) -> ServingError:
    return ServingError(error.status, f"image[{index}]: {error.message.removeprefix('image: ')}")
