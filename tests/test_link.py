"""The decoder channel's wire, both ends in one process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from python_backends.errors import ServingError, StageGone, invalid
from python_backends.link import Call, Door, ReplicaLink, Reply, RouterLink, knock


@pytest.fixture
def ends() -> Iterator[tuple[RouterLink, ReplicaLink]]:
    door = Door()
    replica = ReplicaLink(knock(door.address))
    router = RouterLink(door.accept())
    door.close()
    yield router, replica
    die(replica)


def die(replica: ReplicaLink) -> None:
    """As when its process ends: closing alone would not wake the thread that reads."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(replica._connection.fileno())) as peer:
        peer.shutdown(socket.SHUT_RDWR)


def answer(replica: ReplicaLink, call: Call) -> None:
    """Doubles the numbers of `submit`, refuses all else."""
    if call.op == "submit":
        replica.send(Reply(call.number, (call.arrays["numbers"] * 2).tolist()))
    else:
        replica.send(Reply(call.number, None, invalid("op", "is not known")))


def test_calls_get_their_own_replies_while_reports_come_in_order(ends: tuple[RouterLink, ReplicaLink]) -> None:
    router, replica = ends
    heard: list[object] = []
    follower = threading.Thread(target=lambda: heard.extend(router.follow()))
    follower.start()
    threading.Thread(target=replica.serve, args=(lambda call: answer(replica, call),), daemon=True).start()
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(lambda n: router.call("submit", {"numbers": np.array([n])}), range(50))
        for number in range(20):
            replica.send(number)
        assert list(replies) == [[2 * n] for n in range(50)]
    with pytest.raises(ServingError, match="op: is not known"):
        router.call("dance", {})
    replica.end()
    follower.join(10)
    assert heard == list(range(20))
    with pytest.raises(StageGone):
        router.call("submit", {"numbers": np.array([1])})


def test_a_call_fails_at_once_when_the_replica_dies(ends: tuple[RouterLink, ReplicaLink]) -> None:
    router, replica = ends
    asked = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        following = pool.submit(lambda: list(router.follow()))
        calling = pool.submit(router.call, "submit", {"numbers": np.array([1])})
        threading.Thread(target=replica.serve, args=(lambda _: asked.set(),), daemon=True).start()
        assert asked.wait(10)
        die(replica)
        for ended in (following, calling):
            with pytest.raises(StageGone, match="channel broke"):
                ended.result(10)


def test_nobody_comes_through_a_door_that_is_closed() -> None:
    door = Door()
    door.close()
    with pytest.raises(OSError, match="refused"):
        knock(door.address)


def test_neither_end_takes_messages_from_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    own = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: own + 1)
        with pytest.raises(StageGone, match="another user's"):
            knock(door.address)
        with pytest.raises(StageGone, match="another user's"):
            door.accept()
    door.close()
