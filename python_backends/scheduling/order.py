"""Who goes next among the waiting jobs.

Three ranks, each before the next:

1. *aged*: waited for `aging_s`. Classes share this rank by their weights (start-time fair queueing over tokens), first
   come first served within a class. So no class starves another, whatever the policy prefers.
2. *fresh*: ordered by the policy. `fcfs`: arrival. `text_first`: text, image, video, then arrival. `slo`: least slack
   to the TTFT SLO (ModServe section 4.3: SLO-driven priority; the aging is ours, the paper gives none).
3. *late* (`slo` only): the SLO can't be met any more, so the cheap go before the costly.

Bound of the line: a job of class c that finds A_c tokens of its class aged before it becomes the first within
aging_s + (A_c + L) * W / (w_c * R), for weights w (W their sum), service rate R in tokens a second, and L the tokens of
the largest job: the fair share of its class is w_c / W of the rate. `scheduler` states what its budgets add.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from python_backends.scheduling.budgets import MeasuredRate
from python_backends.scheduling.jobs import Job, Modality

POLICIES = ("fcfs", "text_first", "slo")
_RANKS = {Modality.TEXT: 0, Modality.IMAGE: 1, Modality.VIDEO: 2}


@dataclass(eq=False, slots=True)
class _Waiting:
    job: Job
    work: int  # tokens that this line's stage has to do for it
    live: bool = True  # still in the line; the queues below drop the dead when they meet them
    aged: bool = False


_Key = tuple[float, ...]
_Heap = list[tuple[_Key, int, _Waiting]]  # key, number in order of adding, entry


@dataclass(eq=False, slots=True)
class _ClassLine:
    """The waiting jobs of one class."""

    count: int = 0  # live ones
    aged_count: int = 0
    fresh: _Heap = field(default_factory=list)
    late: _Heap = field(default_factory=list)
    young: _Heap = field(default_factory=list)  # not aged yet, by arrival
    aged: deque[_Waiting] = field(default_factory=deque)
    served: float = 0.0  # aged tokens served, divided by the weight

    def newly_aged(self, before_s: float) -> Iterator[_Waiting]:
        """Those that arrived until then, oldest first, each once."""
        while self.young and (self.young[0][0][0] <= before_s or not self.young[0][2].live):
            entry = heapq.heappop(self.young)[2]
            if entry.live:
                yield entry

    def first_aged(self) -> _Waiting:
        """There must be one."""
        while not self.aged[0].live:
            self.aged.popleft()
        return self.aged[0]

    def head(self, late_before_s: float) -> tuple[int, _Key, int, _Waiting]:
        """Rank (0 fresh, 1 late), key and number of the first that is not aged. There must be one."""
        while self.fresh:
            key, number, entry = self.fresh[0]
            if entry.live and key[0] >= late_before_s:
                return 0, key, number, entry
            heapq.heappop(self.fresh)
            if entry.live:
                self.late = self.push(self.late, (entry.work, entry.job.arrived_s), number, entry)
        while not self.late[0][2].live:
            heapq.heappop(self.late)
        return 1, *self.late[0]

    def push(self, heap: _Heap, key: _Key, number: int, entry: _Waiting) -> _Heap:
        """Add to one of the heaps; gives the heap."""
        if len(heap) > 2 * self.count + 64:  # the dead leave by themselves only at the top
            heap = [old for old in heap if old[2].live]
            heapq.heapify(heap)
        heapq.heappush(heap, (key, number, entry))
        return heap


class WaitingLine:
    """The jobs that wait for one stage; O(log n) for every operation, amortised."""

    def __init__(self, policy: str, aging_s: float, weights: dict[Modality, float], rate: MeasuredRate) -> None:
        """`rate` is the stage's: what a job still needs of it counts against the job's slack."""
        self._policy = policy
        self._aging_s = float("inf") if policy == "fcfs" else aging_s
        self._weights = weights
        self._rate = rate
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._lines = {modality: _ClassLine() for modality in Modality}
        self._next_aging_s = float("inf")  # nobody ages before
        self.tokens = 0  # work of all that wait

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, work: int) -> None:
        """`work`: tokens of this stage."""
        entry = self._waiting[job.job_id] = _Waiting(job, work)
        self.tokens += work
        line, number = self._lines[job.modality], next(self._numbers)
        line.count += 1
        line.fresh = line.push(line.fresh, self._key(job, work), number, entry)
        line.young = line.push(line.young, (job.arrived_s,), number, entry)
        self._next_aging_s = min(self._next_aging_s, job.arrived_s + self._aging_s)

    def discard(self, job_id: int) -> None:
        """Take a job out of the line, if it is in it."""
        entry = self._waiting.pop(job_id, None)
        if entry is not None:
            entry.live = False
            self.tokens -= entry.work
            line = self._lines[entry.job.modality]
            line.count -= 1
            line.aged_count -= entry.aged

    def first(self, now: float, without: Container[Modality] = ()) -> Job | None:
        """Who is next, those of some classes left out; stays in the line."""
        if now >= self._next_aging_s:
            self._age(now)
        late_before_s = now if self._policy == "slo" else float("-inf")
        aged: _ClassLine | None = None
        best: tuple[int, _Key, int, _Waiting] | None = None
        for modality, line in self._lines.items():
            if not line.count or modality in without:
                continue
            if line.aged_count:
                aged = line if aged is None or line.served < aged.served else aged
            elif aged is None:
                head = line.head(late_before_s)
                best = head if best is None or head < best else best
        if aged is not None:
            return aged.first_aged().job
        return best[3].job if best is not None else None

    def take(self, job: Job) -> None:
        """Take a job that `first` gave, now or earlier."""
        entry = self._waiting[job.job_id]
        self.discard(job.job_id)
        if entry.aged:
            self._lines[job.modality].served += max(1, entry.work) / self._weights[job.modality]

    def _key(self, job: Job, work: int) -> _Key:
        if self._policy == "fcfs":
            return (job.arrived_s,)
        if self._policy == "text_first":
            return (_RANKS[job.modality], job.arrived_s)
        latest_start = job.arrived_s + job.ttft_slo_s - self._rate.seconds(work)
        return (latest_start, work, job.arrived_s)

    def _age(self, now: float) -> None:
        for line in self._lines.values():
            for entry in line.newly_aged(now - self._aging_s):
                if not line.aged_count:  # a class that comes back has no claim to the time it was away
                    others = [other.served for other in self._lines.values() if other.aged_count]
                    line.served = max(line.served, min(others, default=0.0))
                entry.aged = True
                line.aged_count += 1
                line.aged.append(entry)
        oldest = (line.young[0][0][0] for line in self._lines.values() if line.young)
        self._next_aging_s = min(oldest, default=float("inf")) + self._aging_s
