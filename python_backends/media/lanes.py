"""Who may be in the decode worker at a time: so much at once, and whoever is suspect alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Budget:
    """An amount that is lent out, first come, first served: nobody small overtakes who waits for much."""

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._first = threading.Lock()  # held by whoever is next
        self._changed = threading.Condition()

    def take(self, amount: int) -> None:
        """Wait for the amount, or for the whole when it is more than that."""
        amount = min(amount, self._limit)
        with self._first, self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount

    def give_back(self, amount: int) -> None:
        """What `take` was called with."""
        with self._changed:
            self._free += min(amount, self._limit)
            self._changed.notify_all()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """For the time of a block."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


class Tally:
    """A count that several threads keep."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> int:
        """Gives the count after it."""
        with self._lock:
            self._count += number
            return self._count


@dataclass
class Visit:
    """One stay in the worker; `shared` tells whether anybody else was there during any of it."""

    shared: bool


class Company:
    """Calls go into the worker side by side; one under suspicion of having killed it goes in alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: list[Visit] = []
        self._suspects = 0  # waiting or inside; while there are any, nobody else goes in
        self._locked = False

    @contextmanager
    def beside(self) -> Iterator[Visit]:
        """Go in with others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._suspects)
            visit = Visit(shared=bool(self._inside))
            for other in self._inside:
                other.shared = True
            self._inside.append(visit)
        try:
            yield visit
        finally:
            with self._changed:
                self._inside = [other for other in self._inside if other is not visit]
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Go in when all others have come out, and keep them out."""
        with self._changed:
            self._suspects += 1
            self._changed.wait_for(lambda: not self._inside and not self._locked)
            self._locked = True
        try:
            yield
        finally:
            with self._changed:
                self._suspects -= 1
                self._locked = False
                self._changed.notify_all()
