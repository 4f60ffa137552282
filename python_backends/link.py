"""The decoder channel's wire: a local socket between the stubs of vlm and of a replica, which a BLS call introduces.

Triton would carry it as decoupled BLS calls, and did until its stub was seen to hang for good: in 24.10 a thread that
begins a decoupled call holds Python's global lock while it waits for the table of such calls, which is held by the
one that delivers a response, which waits for a thread that has taken one and wants the global lock. Nothing in Python
can keep these apart. The socket also tells at once when the other end dies.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from python_backends.errors import ServingError, StageGone

Arrays = Mapping[str, NDArray[Any]]

ACCEPT_S = 5.0  # the other end connects before its BLS call is answered


@dataclass(frozen=True)
class Call:
    """From the router: an operation of the replica."""

    number: int
    op: str
    arrays: Arrays


@dataclass(frozen=True)
class Reply:
    """To the router: what became of a call."""

    number: int
    value: Any
    error: ServingError | None = None


@dataclass(frozen=True)
class End:
    """To the router: no more comes, and nothing is wrong."""


class Door:
    """Where a replica finds the router: an abstract socket, which no crash leaves behind."""

    def __init__(self) -> None:
        self.address = f"tvlm-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(1)
        self._socket.settimeout(ACCEPT_S)

    def accept(self) -> Connection:
        """The one that was told the address (StageGone)."""
        try:
            peer, _ = self._socket.accept()
        except OSError as error:
            raise StageGone(f"the replica did not open its channel: {error}") from None
        return _connection(peer)

    def close(self) -> None:
        """Nobody else may come in."""
        self._socket.close()


def knock(address: str) -> Connection:
    """The other end of a `Door` (OSError: it is not there; StageGone: it is another user's)."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(f"\0{address}")
    except OSError:
        peer.close()
        raise
    return _connection(peer)


def _connection(peer: socket.socket) -> Connection:
    """Messages are pickles: either end takes them from its own user only."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        peer.close()
        raise StageGone(f"the channel's other end is another user's, {user}")
    peer.setblocking(True)
    return Connection(peer.detach())


class RouterLink:
    """The router's end: calls from any thread; one thread follows what comes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # guards all below, and sending
        self._numbers = itertools.count()
        self._replies: dict[int, Future[Any]] = {}
        self._gone: ServingError | None = None

    def call(self, op: str, arrays: Arrays) -> Any:
        """The replica's answer (ServingError; StageGone when it dies meanwhile)."""
        reply: Future[Any] = Future()
        with self._lock:
            if self._gone is not None:
                raise self._gone
            number = next(self._numbers)
            self._replies[number] = reply
            try:
                self._connection.send(Call(number, op, arrays))
            except OSError as error:
                raise StageGone(f"the replica's channel broke: {error}") from None
        return reply.result()

    def follow(self) -> Iterator[Any]:
        """All but replies, until the replica ends it (StageGone: it died)."""
        gone = StageGone("the replica's channel broke")
        try:
            while not isinstance(message := self._connection.recv(), End):
                if isinstance(message, Reply):
                    self._settle(message)
                else:
                    yield message
            gone = StageGone("the replica ended its channel")
        except (EOFError, OSError):
            raise gone from None
        finally:
            self._close(gone)

    def _settle(self, reply: Reply) -> None:
        with self._lock:
            waiting = self._replies.pop(reply.number)
        if reply.error is None:
            waiting.set_result(reply.value)
        else:
            waiting.set_exception(reply.error)

    def _close(self, gone: ServingError) -> None:
        with self._lock:
            self._gone = gone
            waiting, self._replies = list(self._replies.values()), {}
            self._connection.close()
        for reply in waiting:
            reply.set_exception(gone)


class ReplicaLink:
    """The replica's end: messages from any thread; one thread answers calls."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """To the router (OSError: it is gone)."""
        with self._lock:
            self._connection.send(message)

    def end(self) -> None:
        """No more comes."""
        with contextlib.suppress(OSError), self._lock:
            self._connection.send(End())

    def serve(self, start: Callable[[Call], None]) -> None:
        """`start` what is asked, until the router is gone. Blocks."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                start(self._connection.recv())
        with self._lock:
            self._connection.close()
