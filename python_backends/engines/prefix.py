"""How much of each prompt an engine with prefix caching need not compute again, as far as its adapter can tell.

OpenVINO GenAI reuses KV blocks of a prompt's beginning by a chained hash of the embeddings in them, and tells nobody
how many. So the adapter keeps the same account: chained hashes of full blocks, at most as many as the cache has,
least recently used out first. Blocks of generated tokens, which the engine keeps too, are not in the account, so the
truth is this or more, except while sequences fill the whole cache.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

_SAMPLED = 8  # elements of each row that go into the hash


class PrefixAccount:
    """For one engine."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._limit = blocks
        self._block_tokens = block_tokens
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def enter(self, rows: NDArray[np.float32]) -> int:
        """Take a prompt's embeddings [tokens, hidden] into account; gives how many of its tokens were there already.

        The last token is always computed: its logits are needed.
        """
        size, known, unbroken = self._block_tokens, 0, True
        link = b""
        step = max(1, rows.shape[1] // _SAMPLED)
        for start in range(0, len(rows) - size + 1, size):
            sample = np.ascontiguousarray(rows[start : start + size, ::step])
            link = hashlib.blake2b(link + sample.tobytes(), digest_size=16).digest()
            unbroken = unbroken and link in self._seen
            known += size if unbroken else 0
            self._seen[link] = None
            self._seen.move_to_end(link)
        while len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return min(known, len(rows) - 1)
