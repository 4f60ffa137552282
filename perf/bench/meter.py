"""What else the machine did during a run: work of others on its cores, and time that the hypervisor took away."""

from __future__ import annotations

import contextlib
import time

import psutil


class Meter:
    """Begins to count when made."""

    def __init__(self) -> None:
        self._begin = _sample()

    def read(self) -> tuple[float, float]:
        """(cores that processes outside of this bench used on average, share of CPU time that was stolen)."""
        wall, busy, own, steal, total = (now - then for now, then in zip(_sample(), self._begin, strict=True))
        return max(0.0, busy - own) / wall, steal / total if total else 0.0


def _sample() -> tuple[float, float, float, float, float]:
    """Seconds: wall, CPU busy, CPU of this process and its children, stolen, CPU in all."""
    times = psutil.cpu_times()
    total = times.user + times.nice + times.system + times.idle + times.iowait + times.irq + times.softirq + times.steal
    busy = total - times.idle - times.iowait - times.steal
    me = psutil.Process()
    own = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            used = process.cpu_times()
            own += used.user + used.system
    return time.monotonic(), busy, own, times.steal, total
