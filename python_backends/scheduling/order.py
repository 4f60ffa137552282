"""Who goes next among the waiting jobs.

Three ranks, each before the next:

1. *aged*: waited for `aging_s`. Classes share this rank by their weights (start-time fair queueing over tokens), first
   come first served within a class. So no class starves another, whatever the policy prefers.
2. *fresh*: ordered by the policy. `fcfs`: arrival. `text_first`: text, image, video, then arrival. `slo`: least slack
   to the TTFT SLO (ModServe section 4.3: SLO-driven priority; the aging is ours, the paper gives none).
3. *late* (`slo` only): the SLO can't be met any more, so the cheap go before the costly.

Bound: a job of class c that finds A_c tokens of its class aged before it is taken within
aging_s + (A_c + L) * W / (w_c * R), for weights w (W their sum), service rate R in tokens a second, and L the tokens of
the largest job: the fair share of its class is w_c / W of the rate.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

from python_backends.scheduling.budgets import MeasuredRate
from python_backends.scheduling.jobs import Job, Modality

_MODALITIES = tuple(Modality)
POLICIES = ("fcfs", "text_first", "slo")
_RANKS = {Modality.TEXT: 0, Modality.IMAGE: 1, Modality.VIDEO: 2}


@dataclass(eq=False, slots=True)
class _Waiting:
    job: Job
    work: int  # tokens that this line's stage has to do for it
    live: bool = True  # still in the line; the queues below drop the dead when they meet them
    aged: bool = False


_Heap = list[tuple[tuple[float, ...], int, _Waiting]]  # key, number in order of adding, entry


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
        self.tokens = 0  # work of all that wait
        self._fresh: _Heap = []
        self._late: _Heap = []
        self._young: _Heap = []  # not aged yet, by arrival
        self._aged: dict[Modality, deque[_Waiting]] = {modality: deque() for modality in Modality}
        self._aged_count = 0  # live ones: mostly there are none, and nothing to look for
        self._served = dict.fromkeys(Modality, 0.0)  # aged tokens served, divided by the weight

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, work: int) -> None:
        """`work`: tokens of this stage."""
        entry = self._waiting[job.job_id] = _Waiting(job, work)
        self.tokens += work
        self._fresh = self._push(self._fresh, self._key(job, work), entry)
        self._young = self._push(self._young, (job.arrived_s,), entry)

    def discard(self, job_id: int) -> None:
        """Take a job out of the line, if it is in it."""
        entry = self._waiting.pop(job_id, None)
        if entry is not None:
            entry.live = False
            self.tokens -= entry.work
            self._aged_count -= entry.aged

    def first(self, now: float) -> Job | None:
        """Who is next; stays in the line."""
        if not self._waiting:
            return None
        self._age(now)
        if self._aged_count:
            return self._aged[self._next_aged()][0].job
        while self._fresh:
            key, _, entry = self._fresh[0]
            if entry.live and not (self._policy == "slo" and key[0] < now):
                return entry.job
            heapq.heappop(self._fresh)
            if entry.live:
                self._late = self._push(self._late, (entry.work, entry.job.arrived_s), entry)
        while self._late and not self._late[0][2].live:
            heapq.heappop(self._late)
        return self._late[0][2].job if self._late else None

    def take(self, job: Job) -> None:
        """Take the job that `first` gave."""
        entry = self._waiting[job.job_id]
        self.discard(job.job_id)
        if entry.aged:
            self._aged[job.modality].popleft()
            self._served[job.modality] += max(1, entry.work) / self._weights[job.modality]

    def _key(self, job: Job, work: int) -> tuple[float, ...]:
        if self._policy == "fcfs":
            return (job.arrived_s,)
        if self._policy == "text_first":
            return (_RANKS[job.modality], job.arrived_s)
        latest_start = job.arrived_s + job.ttft_slo_s - self._rate.seconds(work)
        return (latest_start, work, job.arrived_s)

    def _age(self, now: float) -> None:
        while self._young:
            key, _, entry = self._young[0]
            if entry.live and key[0] + self._aging_s > now:
                return
            heapq.heappop(self._young)
            if entry.live:
                self._join_aged(entry)

    def _join_aged(self, entry: _Waiting) -> None:
        modality = entry.job.modality
        if not self._has_aged(modality):  # a class that comes back has no claim to the time it was away
            others = [self._served[m] for m in Modality if m is not modality and self._has_aged(m)]
            self._served[modality] = max(self._served[modality], min(others, default=0.0))
        entry.aged = True
        self._aged_count += 1
        self._aged[modality].append(entry)

    def _next_aged(self) -> Modality:
        return min((m for m in _MODALITIES if self._has_aged(m)), key=self._served.__getitem__)

    def _has_aged(self, modality: Modality) -> bool:
        line = self._aged[modality]
        while line and not line[0].live:
            line.popleft()
        return bool(line)

    def _push(self, heap: _Heap, key: tuple[float, ...], entry: _Waiting) -> _Heap:
        if len(heap) > 2 * len(self._waiting) + 64:  # the dead leave by themselves only at the top
            heap = [old for old in heap if old[2].live]
            heapq.heapify(heap)
        heapq.heappush(heap, (key, next(self._numbers), entry))
        return heap
