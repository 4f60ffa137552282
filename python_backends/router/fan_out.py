"""Per-image fan-out: every image of a request is its own call, in flight as soon as the scheduler lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from python_backends import metrics
from python_backends.engines.protocol import NO_VISUALS, VisualRows, describe_images
from python_backends.errors import ServingError, invalid
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.media.payload import unwrap
from python_backends.media.sniff import read_header
from python_backends.media.tiling import Size
from python_backends.metrics import Metrics
from python_backends.router.dispatch import Ticket
from python_backends.router.encoder import Encoder, Picture, Visual


class FanOut:
    """Makes the images of requests."""

    def __init__(self, encoder: Encoder, limits: ImageLimits, layout: Layout, pool_mb: int, metrics: Metrics) -> None:
        self._encoder = encoder
        self._limits = limits
        self._layout = layout
        self._pool_mb = pool_mb
        self._metrics = metrics

    def look_at(self, images: Sequence[bytes | memoryview]) -> list[Picture]:
        """Check the images without decoding them; from any thread.

        Raises:
            ServingError: INVALID_ARG, naming the index of the image.
        """
        pictures = []
        for index, image in enumerate(images):
            try:
                pictures.append(self._look_at(image, alone=len(images) == 1))
            except ServingError as error:
                raise _at(index, error) from None
        return pictures

    def look_up(self, pictures: Sequence[Picture]) -> RequestImages:
        """Find those that were encoded before."""
        known = [self._encoder.known(picture) for picture in pictures]
        if pictures:
            self._metrics.record(metrics.CACHE_QUERIES, len(pictures))
            self._metrics.record(metrics.CACHE_HITS, sum(visual is not None for visual in known))
        return RequestImages(self._encoder, pictures, known)

    def _look_at(self, image: bytes | memoryview, alone: bool) -> Picture:
        pool = self._encoder.pool
        data = unwrap(image, self._limits)
        header = read_header(data, self._limits)
        size = Size(*header.upright_size)
        tokens, grid = self._layout.tokens(size, alone), self._layout.token_grid(size)
        if self._pool_mb and tokens > pool.most_tokens:
            raise invalid(
                "image", f"{tokens} visual tokens are over the {pool.most_tokens} of cache.encoder_mb = {self._pool_mb}"
            )
        variant = b"company" if self._layout.alone_only and not alone else b""
        return Picture(data, pool.key(data, variant), tokens, alone, (grid.height, grid.width) if grid else (0, 0))


class RequestImages:
    """The images of one request, in order, and what it holds of them. Release it, however the request ends."""

    def __init__(self, encoder: Encoder, pictures: Sequence[Picture], known: Sequence[Visual | None]) -> None:
        self._encoder = encoder
        self._pictures = pictures
        self._held = list(known)

    @property
    def tokens(self) -> list[int]:
        """Visual tokens of each image."""
        return [picture.tokens for picture in self._pictures]

    @property
    def missing_tokens(self) -> tuple[int, ...]:
        """Visual tokens of each image that has to be encoded."""
        return tuple(p.tokens for p, held in zip(self._pictures, self._held, strict=True) if held is None)

    async def embed(self, ticket: Ticket) -> list[Visual]:
        """All images; the ticket's items are those missing, in order.

        Raises:
            ServingError: the first failure, naming the image's index; its siblings are given up.
        """
        return await self._complete(ticket)

    async def embed_again(self) -> None:
        """Hold all images anew, for a sequence that has to be submitted again; off the scheduler's budget, as rare."""
        await self._complete(None)

    def rows(self) -> VisualRows:
        """The visual tokens as they go to a replica: by page numbers, or copied when one image is not in pages."""
        visuals = [visual for visual in self._held if visual is not None]
        if not visuals:
            return NO_VISUALS
        pool = self._encoder.pool
        told = describe_images(self.tokens, [p.grid for p in self._pictures], [p.key for p in self._pictures])
        entries = [visual.entry for visual in visuals if visual.entry is not None]
        if len(entries) == len(visuals):
            return VisualRows(NO_VISUALS.copied, pool.page_list(entries), pool.address, told)
        parts = [visual.loose if visual.entry is None else pool.read(visual.entry) for visual in visuals]
        return VisualRows(np.concatenate([part for part in parts if part is not None]), images=told)

    def release(self) -> None:
        """Prefill is done, or the request is over."""
        for index, visual in enumerate(self._held):
            if visual is not None:
                self._encoder.release(visual)
                self._held[index] = None

    async def _complete(self, ticket: Ticket | None) -> list[Visual]:
        missing = [index for index, visual in enumerate(self._held) if visual is None]
        tasks = [asyncio.create_task(self._embed_one(index, item, ticket)) for item, index in enumerate(missing)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [visual for visual in self._held if visual is not None]

    async def _embed_one(self, index: int, item: int, ticket: Ticket | None) -> None:
        if ticket is not None:
            await ticket.encode_turn(item)
        try:
            self._held[index] = await self._encoder.obtain(self._pictures[index])
        except ServingError as error:
            raise _at(index, error) from None
        if ticket is not None:
            ticket.encoded(item)


def _at(index: int, error: ServingError) -> ServingError:
    return ServingError(error.status, f"image[{index}]: {error.message.removeprefix('image: ')}")
