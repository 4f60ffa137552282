"""Encode gives way: its workers stand still in the steps of the token loop of the same server, and have turns between.

Both want every core of a small machine. Side by side the threads of each wait for one another, the encoder gets nearly
half the machine whatever its nice level, and a step takes twice its time (docs/performance.md). So they take turns,
each with all cores; how long, follows from the slack of decode, as budgets do in UnifiedServe. A process that is
stopped gives its cores up at once, whatever it computes, and goes on from there.

Nothing stays stopped: encode has a share of the time for sure (`Credit`), the stub of a token loop that dies sets its
victims going (`set_going`), and a stub takes a worker that stays stopped for a hung one (`workers.supervisor`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "TVLM_GIVES_WAY"  # in the environment of the workers that do
OFTEN_STOPPED_S = 3.0  # without a word of theirs are no hang yet
_MOST_S = 1.0  # they stand still before their first turn
_TURN_S = 0.03  # of theirs, before a step, at the least: what a token of a running answer waits longer
_LOOK_S = 1.0  # between two looks for those that are missing
_GLANCE_S = 0.005  # at whether their turn is of use to them


class Credit:
    """How long encode may be stopped, earned by the time that it ran; pure."""

    def __init__(self, share: float) -> None:
        """`share` of the time is encode's for sure, over 0 and below 1."""
        self._per_s = (1 - share) / share
        self._left_s = _MOST_S

    @property
    def is_left(self) -> bool:
        """Whether encode may be stopped without a turn before."""
        return self._left_s > 0

    def ran(self, seconds: float) -> None:
        """Encode could run for so long."""
        self._left_s = min(_MOST_S, self._left_s + seconds * self._per_s)

    def stood(self, seconds: float) -> None:
        """Encode was stopped for so long."""
        self._left_s -= seconds


class GivingWay:
    """The workers that give way to this process, which is a worker of the same tritonserver."""

    def __init__(self, count: int, share: float) -> None:
        """`count` of them are expected; `share` as for `Credit`."""
        self._count = count
        self._credit = Credit(share)
        self._server = _parents().get(os.getppid(), 0)
        self._processes: dict[int, int] = {}  # pid: pidfd
        self._looked_s = float("-inf")
        self._since_s = time.monotonic()

    def give_turn(self, spare_s: float) -> None:
        """Wait while a turn is theirs, or until they have nothing to do.

        Theirs are the `spare_s` that this process can do without, and what their share needs beyond.
        """
        begin = now = time.monotonic()
        self._credit.ran(now - self._since_s)
        self._look(now)
        turn_s = max(spare_s, 0.0 if self._credit.is_left else _TURN_S)
        while (now - begin < turn_s or not self._credit.is_left) and self._are_at_work():
            time.sleep(_GLANCE_S)
            self._credit.ran(time.monotonic() - now)
            now = time.monotonic()
        self._since_s = now

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """They stand still inside."""
        begin = time.monotonic()
        self._credit.ran(begin - self._since_s)
        at_work = self._are_at_work()
        try:
            self._send(signal.SIGSTOP)  # those without work, too: it may come now
            yield
        finally:
            self._send(signal.SIGCONT)
            self._since_s = time.monotonic()
            if at_work:
                self._credit.stood(self._since_s - begin)

    def _are_at_work(self) -> bool:
        """By the state of their main threads, which compute."""
        return any(_state(pid) == "R" for pid in self._processes)

    def _look(self, now: float) -> None:
        """They come after this process, and again after their deaths."""
        if len(self._processes) >= self._count or now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        for pid in _giving_way(self._server) - self._processes.keys():
            with contextlib.suppress(OSError):
                self._processes[pid] = os.pidfd_open(pid)

    def _send(self, number: signal.Signals) -> None:
        for pid, pidfd in list(self._processes.items()):
            try:
                signal.pidfd_send_signal(pidfd, number)
            except OSError:  # it has ended
                os.close(self._processes.pop(pid))


def set_going() -> None:
    """In a stub: workers of its tritonserver that give way go on, whoever stopped them."""
    for pid in _giving_way(os.getppid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _giving_way(server: int) -> set[int]:
    """Workers are children of stubs, and those are children of tritonserver."""
    parents = _parents()
    workers = {pid for pid, parent in parents.items() if parents.get(parent) == server}
    return {pid for pid in workers if _is_marked(pid)}


def _parents() -> dict[int, int]:
    """Every process and its parent, by proc(5)."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    return parents


def _state(pid: int) -> str:
    """Of the main thread: "R" when it runs or would; "" when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]


def _is_marked(pid: int) -> bool:
    try:
        return f"{MARK}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
