"""Which pages of the embedding pool belong to which image: allocation, references, eviction. No memory, no I/O.

An entry's pages are its own until nobody holds it *and* it was evicted. Visual entries that nobody holds stay for the
next request with the same image and go first in, first out when room is needed (UnifiedServe, arXiv 2512.17574: a
paged vision region with FIFO eviction and blocks freed as soon as they are consumed).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    """The pages of one image."""

    key: bytes
    tokens: int
    pages: tuple[int, ...]  # in order; the last one may be filled in part
    number: int  # order of allocation
    holders: int = 1
    filled: bool = False  # its visual tokens are there
    queued: bool = field(default=False, repr=False)  # waits in the table's line of eviction


@dataclass(frozen=True)
class PoolUsage:
    """Pages of the pool. `held` ones are needed by running requests; the other `used` ones can be evicted."""

    total: int
    used: int
    held: int

    @property
    def held_share(self) -> float:
        """0 to 1; 0 without a pool."""
        return self.held / self.total if self.total else 0.0

    @property
    def kept(self) -> int:
        """Pages that nobody holds, for images that may be seen again."""
        return self.used - self.held

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        return self.total - self.used


class PageTable:
    """`total` pages of `page_tokens` tokens each, given out by whole entries.

    Every operation is O(pages of the entry + log entries), amortised.
    """

    def __init__(self, total: int, page_tokens: int) -> None:
        self.total = total
        self._page_tokens = page_tokens
        self.evicted = 0  # entries, since the beginning
        self._free = list(range(total - 1, -1, -1))
        self._entries: dict[bytes, Entry] = {}
        self._held = 0  # pages of entries with holders
        self._numbers = itertools.count()
        self._line: list[tuple[int, Entry]] = []  # for eviction; entries that were taken up again are passed over

    @property
    def usage(self) -> PoolUsage:
        """As it is now."""
        return PoolUsage(self.total, self.total - len(self._free), self._held)

    def find(self, key: bytes) -> Entry | None:
        """The entry of an image, filled or being filled."""
        return self._entries.get(key)

    def allocate(self, key: bytes, tokens: int) -> Entry | None:
        """A new entry for so many tokens with one holder, at the cost of the oldest that nobody holds.

        None, and nothing is evicted, when held entries leave no room. The key must not be in the table.
        """
        assert key not in self._entries
        count = -(-tokens // self._page_tokens)
        if count > self.total - self._held:
            return None
        while len(self._free) < count:
            self._evict_oldest()
        entry = Entry(key, tokens, tuple(self._free.pop() for _ in range(count)), next(self._numbers))
        self._entries[key] = entry
        self._held += count
        return entry

    def hold(self, entry: Entry) -> None:
        """One more holder, of an entry that `find` gave."""
        if entry.holders == 0:
            self._held += len(entry.pages)
        entry.holders += 1

    def release(self, entry: Entry) -> Sequence[int]:
        """One holder less; gives the pages that became free with it (those of an entry that was never filled)."""
        assert entry.holders > 0
        entry.holders -= 1
        if entry.holders:
            return ()
        self._held -= len(entry.pages)
        if entry.filled:
            self._enqueue(entry)
            return ()
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._free.extend(reversed(entry.pages))
        return entry.pages

    def forget(self, entry: Entry) -> None:
        """An entry that will not be filled: nobody finds it any more, its pages come back with its last holder."""
        assert not entry.filled
        del self._entries[entry.key]

    def _enqueue(self, entry: Entry) -> None:
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._line, (entry.number, entry))

    def _evict_oldest(self) -> None:
        while True:
            _, entry = heapq.heappop(self._line)
            entry.queued = False
            if entry.holders == 0:
                break
        del self._entries[entry.key]
        self._free.extend(reversed(entry.pages))
        self.evicted += 1
