"""The embedding pool: visual tokens of images that are in use or were seen before, in pages of shared memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.page_table import Entry, PageTable, PoolUsage
from python_backends.embeddings.region import NO_PAGES, Geometry, PoolRegion
from python_backends.embeddings.target import PAGE_TOKENS, PageTarget


class EmbeddingPool:
    """One for the router, which alone allocates, and writes or says who writes; it belongs to one thread."""

    def __init__(self, limit_bytes: int, hidden: int, shaped_by: bytes, gpu: int | None = None) -> None:
        """`shaped_by` stands for all that shapes tokens beside an image's bytes: model, preprocessing, precision.

        `gpu`: whose memory the pages are in; None: the host's (MissingRuntime: it is not to be had).
        """
        geometry = Geometry(limit_bytes // (PAGE_TOKENS * hidden * 2), PAGE_TOKENS, hidden)
        self._table = PageTable(geometry.pages, PAGE_TOKENS)
        self._region = PoolRegion(geometry, gpu)
        self._salt = hashlib.blake2b(shaped_by, digest_size=64).digest()
        self.address = self._region.address  # for `region.PoolReader`

    @property
    def usage(self) -> PoolUsage:
        """Pages, as they are used now."""
        return self._table.usage

    @property
    def evicted(self) -> int:
        """Entries that were evicted so far."""
        return self._table.evicted

    @property
    def most_tokens(self) -> int:
        """Visual tokens of the largest image that fits."""
        return self._table.total * PAGE_TOKENS

    def key(self, data: bytes, variant: bytes = b"") -> bytes:
        """Key of an encoded image file, 32 bytes; `variant` (up to 16) tells apart what one file can become.

        Over the file, not over its pixels: pixel bytes alone are equal for pictures of different shape.
        """
        return hashlib.blake2b(data, digest_size=32, key=self._salt, person=variant).digest()

    def find(self, key: bytes) -> Entry | None:
        """The filled entry of an image, with one more holder; release it."""
        entry = self._table.find(key)
        if entry is None or not entry.filled:
            return None
        self._table.hold(entry)
        return entry

    def allocate(self, key: bytes, tokens: int) -> Entry | None:
        """Pages for an image that is not in the pool; None while running requests leave no room. Release it."""
        return self._table.allocate(key, tokens)

    def hold(self, entry: Entry) -> None:
        """One more holder."""
        self._table.hold(entry)

    def release(self, entry: Entry) -> None:
        """One holder less."""
        self._table.release(entry)

    def forget(self, entry: Entry) -> None:
        """An entry that can't be filled."""
        self._table.forget(entry)

    def target(self, entry: Entry) -> PageTarget | None:
        """Where the encoder shall write an image that is not there yet; `written` follows. None: it can't reach it."""
        if not self._region.on_gpu:
            return None
        self._region.renew(entry.pages)
        return PageTarget(self.address, entry.pages, entry.tokens)

    def written(self, entry: Entry) -> None:
        """The encoder has put an image's visual tokens where it was told to."""
        entry.filled = True

    def fill(self, entry: Entry, visual_tokens: NDArray[np.float16]) -> None:
        """Write an image's visual tokens [tokens, hidden] into its pages (ValueError: not the number foreseen)."""
        if len(visual_tokens) != entry.tokens:
            raise ValueError(f"{len(visual_tokens)} visual tokens, where {entry.tokens} were foreseen")
        self._region.write(entry.pages, visual_tokens)
        entry.filled = True

    def read(self, entry: Entry) -> NDArray[np.float16]:
        """A copy of a held entry's visual tokens [tokens, hidden], for a replica that can't map the pool."""
        return self._region.read(entry.pages, entry.tokens)

    def page_list(self, entries: list[Entry]) -> NDArray[np.int64]:
        """The pages of held entries, in order, as `region.PoolReader.copy` takes them: int64 [pages, 3]."""
        lists = [self._region.page_list(entry.pages, entry.tokens) for entry in entries]
        return np.concatenate(lists) if lists else NO_PAGES

    def close(self) -> None:
        """Give the memory up."""
        self._region.close()
