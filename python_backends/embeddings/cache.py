"""The encoder cache: visual tokens of images that were seen before."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray


def image_key(data: bytes) -> bytes:
    """Key of an encoded image file, 32 bytes.

    Over the file, not over its pixels: pixel bytes alone are equal for pictures of different shape. All else that
    shapes the tokens (checkpoint, preprocessing) is fixed for the lifetime of a router, and so of a cache.
    """
    return hashlib.blake2b(data, digest_size=32).digest()


class EmbeddingCache:
    """At most `limit_bytes` of visual tokens; the oldest entry goes first (UnifiedServe: FIFO for vision).

    An evicted entry stays whole for the requests that hold it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.bytes = 0
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[bytes, NDArray[np.float16]] = OrderedDict()

    def get(self, key: bytes) -> NDArray[np.float16] | None:
        """Visual tokens [tokens, hidden] of an image, if they are here."""
        return self._entries.get(key)

    def put(self, key: bytes, visual_tokens: NDArray[np.float16]) -> None:
        """Keep them, at the cost of the oldest; one that is larger than the whole cache is not kept."""
        if key in self._entries or visual_tokens.nbytes > self._limit_bytes:
            return
        while self.bytes + visual_tokens.nbytes > self._limit_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.nbytes
        visual_tokens.setflags(write=False)  # it is shared from now on
        self._entries[key] = visual_tokens
        self.bytes += visual_tokens.nbytes
