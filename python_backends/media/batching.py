"""Calls from several threads, run together: whatever waits when the one before is done is the next batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Never waits for company: alone, a call is a batch of one."""

    def __init__(self, run: Callable[[list[Item]], list[Result]], largest: int) -> None:
        """`run` gives a result for each item, in a thread of the batcher's own; its error is that of all of them."""
        self._run = run
        self._largest = largest
        self._waiting: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="batches", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Calls that the next batches are made of."""
        return self._waiting.qsize()

    def call(self, item: Item) -> Result:
        """Run with whatever waits too, and give its result (what `run` raised)."""
        future: Future[Result] = Future()
        self._waiting.put((item, future))
        return future.result()

    def _loop(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < self._largest and not self._waiting.empty():
                batch.append(self._waiting.get())
            try:
                results = self._run([item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    future.set_result(result)
