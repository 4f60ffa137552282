"""The embedding pool's page table: no leak, no double use, never over its size, what is held is never evicted."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from python_backends.embeddings.page_table import Entry, PageTable

PAGE = 4
KEYS = st.sampled_from([bytes([letter]) for letter in range(12)])


def filled(table: PageTable, key: bytes, count: int) -> Entry:
    entry = table.allocate(key, count * PAGE)
    assert entry is not None
    entry.filled = True
    table.release(entry)
    return entry


class TableMachine(RuleBasedStateMachine):
    """Any order of what requests do, beside a model that knows only who holds what."""

    @initialize(total=st.integers(0, 12))
    def start(self, total: int) -> None:
        self.table, self.twin = PageTable(total, PAGE), PageTable(total, PAGE)
        self.total = total
        self.holds: list[tuple[Entry, Entry]] = []  # one a holder: the entry, and its twin's
        self.idle: list[Entry] = []  # filled, held by nobody, in order of allocation

    def entries(self) -> list[Entry]:
        held = {id(entry): entry for entry, _ in self.holds}
        return [*held.values(), *self.idle]

    @rule(key=KEYS, tokens=st.integers(1, 5 * PAGE))
    def ask(self, key: bytes, tokens: int) -> None:
        """A request wants an image: found, or allocated, or (all held) neither."""
        count = -(-tokens // PAGE)
        entry, twin = self.table.find(key), self.twin.find(key)
        if entry is not None:
            assert twin is not None
            self.table.hold(entry)
            self.twin.hold(twin)
            self.idle = [other for other in self.idle if other is not entry]
            self.holds.append((entry, twin))
            return
        held = sum(len(pages) for pages in {id(e): e.pages for e, _ in self.holds}.values())
        entry, twin = self.table.allocate(key, tokens), self.twin.allocate(key, tokens)
        if held + count > self.total:
            assert entry is None
            return
        assert entry is not None
        assert twin is not None
        assert len(entry.pages) == count
        assert entry.pages == twin.pages  # same in, same out
        room = self.total - held - sum(len(other.pages) for other in self.idle)
        while room < count:  # first in, first out
            room += len(self.idle.pop(0).pages)
        self.holds.append((entry, twin))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry, twin = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        last = all(other is not entry for other, _ in self.holds)
        pages = self.table.release(entry)
        assert pages == self.twin.release(twin)
        assert tuple(pages) == (entry.pages if last and not entry.filled else ())
        if last and entry.filled:
            self.idle = sorted([*self.idle, entry], key=lambda e: e.number)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), good=st.booleans())
    def encoded(self, data: st.DataObject, good: bool) -> None:
        """An encode ends: its entry is filled, or forgotten."""
        entry, twin = data.draw(st.sampled_from(self.holds))
        if entry.filled or self.table.find(entry.key) is not entry:
            return
        if good:
            entry.filled = twin.filled = True
        else:
            self.table.forget(entry)
            self.twin.forget(twin)
            assert self.table.find(entry.key) is None

    @invariant()
    def every_page_has_one_owner_and_none_is_lost(self) -> None:
        pages = [page for entry in self.entries() for page in entry.pages]
        assert len(set(pages)) == len(pages)
        assert set(pages) <= set(range(self.total))
        usage = self.table.usage
        assert usage.used == len(pages)
        assert 0 <= usage.held <= usage.used <= usage.total == self.total

    @invariant()
    def what_is_idle_or_held_and_filled_is_found(self) -> None:
        for entry in self.entries():
            if entry.filled:
                assert self.table.find(entry.key) is entry

    def teardown(self) -> None:
        """When all requests are over, nothing is held."""
        if hasattr(self, "table"):
            for entry, _ in self.holds:
                self.table.release(entry)
            assert self.table.usage.held == 0


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_oldest_goes_first_although_it_was_used_last() -> None:
    table = PageTable(3, PAGE)
    first, second = filled(table, b"a", 1), filled(table, b"b", 1)
    table.hold(first)
    table.release(first)
    assert table.allocate(b"c", 2 * PAGE) is not None
    assert table.find(b"a") is None
    assert table.find(b"b") is second
    assert table.evicted == 1


def test_held_entry_is_passed_over() -> None:
    table = PageTable(2, PAGE)
    first = filled(table, b"a", 1)
    filled(table, b"b", 1)
    table.hold(first)
    assert table.allocate(b"c", 1) is not None
    assert table.find(b"a") is first
    assert table.find(b"b") is None


def test_nothing_is_evicted_for_what_does_not_fit() -> None:
    table = PageTable(2, PAGE)
    entry = filled(table, b"a", 1)
    table.hold(filled(table, b"b", 1))
    assert table.allocate(b"c", 2 * PAGE) is None
    assert table.find(b"a") is entry
    assert table.usage.held_share == pytest.approx(0.5)
