"""Work that ends when something else happens: its client goes away, its time is over.

It goes on in the caller's own task: to hand it to another one, or to have one watch, would cost turns of the event loop
before each first token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

Interrupt = Callable[[], None]


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class Connection:
    """A client's connection. It has one request at a time."""

    def __init__(self) -> None:
        self.is_lost = False
        self.interrupt: Interrupt | None = None  # what its loss ends

    def lose(self) -> None:
        """It is gone."""
        self.is_lost = True
        if self.interrupt is not None:
            self.interrupt()


class _Interruptible:
    """What is done inside is cancelled by `interrupt`, and ends with `error`. A context manager."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._is_interrupted = False
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_interrupted and kind is asyncio.CancelledError:
            if hasattr(self._task, "uncancel"):  # Python 3.11: it was cancelled here only
                self._task.uncancel()
            raise self._error from None


class WhileConnected(_Interruptible):
    """Until the client goes away (ClientGone)."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(ClientGone())
        self._connection = connection

    def __enter__(self) -> None:
        if self._connection.is_lost:
            raise self._error
        self._connection.interrupt = self.interrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.interrupt = None
        super().__exit__(kind, error, traceback)


class TimeLimit(_Interruptible):
    """For so long (TimeoutError)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(TimeoutError())
        self._seconds = seconds

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.interrupt)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        super().__exit__(kind, error, traceback)
