"""Per-image fan-out: every image of a request is its own call, all in flight at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from python_backends.errors import ServingError, Status
from python_backends.metrics import RETRIES, Metrics
from python_backends.router.dispatch import Ticket
from python_backends.router.stages import Embedding, Stages

log = logging.getLogger(__name__)


class FanOut:
    """Encodes the images of all requests, each when the scheduler lets it."""

    def __init__(self, stages: Stages, threads: int, metrics: Metrics) -> None:
        self._metrics = metrics
        self._stages = stages
        self._threads = ThreadPoolExecutor(threads, "embed")  # a BLS call blocks its thread

    async def embed(self, images: Sequence[bytes], ticket: Ticket) -> list[Embedding]:
        """All images of one request, results by position.

        Raises:
            ServingError: the first failure, naming the image's index; its siblings are given up.
        """
        tasks = [asyncio.create_task(self._embed_one(i, image, ticket)) for i, image in enumerate(images)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [task.result() for task in tasks]

    def close(self) -> None:
        """No more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _embed_one(self, index: int, image: bytes, ticket: Ticket) -> Embedding:
        await ticket.encode_turn(index)
        try:
            embedding = await self._call(image)
        except ServingError as error:
            raise ServingError(error.status, f"image[{index}]: {error.message.removeprefix('image: ')}") from None
        ticket.encoded(index)
        return embedding

    async def _call(self, image: bytes) -> Embedding:
        """One image through the stages; again, once, when the worker that had it died."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._stages.embed, image)
        except ServingError as error:
            if error.status is not Status.UNAVAILABLE:
                raise
            log.warning("encoding again after: %s", error.message)
            self._metrics.record(RETRIES, 1, stage="encode")
            return await loop.run_in_executor(self._threads, self._stages.embed, image)
