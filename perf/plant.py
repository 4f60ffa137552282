"""A simulated plant for the production scheduler: encoders and replicas of fixed speed, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from python_backends.scheduling.admission import AdmissionSettings
from python_backends.scheduling.jobs import Action, Encode, Job, Modality, Reject, Submit
from python_backends.scheduling.scheduler import Scheduler, SchedulerSettings

SLO_S = {Modality.TEXT: 0.5, Modality.IMAGE: 2.0, Modality.VIDEO: 8.0}
QUEUE_LIMITS = dict.fromkeys(Modality, 1_000_000)


def settings(**changes: Any) -> SchedulerSettings:
    """Settings of a small machine, with changes."""
    values: dict[str, Any] = {
        "policy": "slo",
        "weights": dict.fromkeys(Modality, 1.0),
        "admission": AdmissionSettings(QUEUE_LIMITS),
        "encoders": 1,
        "replicas": 1,
        "encode_budget_tokens": 1024,
        "prefill_budget_tokens": 2048,
        "running_limit": 32,
        "aging_s": 5.0,
        "longest_gap_s": 0.1,
        "largest_item_tokens": 256,
    }
    return SchedulerSettings(**{**values, **changes})


@dataclass
class Plant:
    """Runs jobs through a scheduler; every stage serves one thing at a time, at its speed."""

    scheduler: Scheduler
    encode_tokens_per_s: float = 2000.0
    prefill_tokens_per_s: float = 4000.0
    token_s: float = 0.001
    started: dict[int, float] = field(default_factory=dict)  # when a job got its replica
    ended: dict[int, float] = field(default_factory=dict)
    rejected: set[int] = field(default_factory=set)
    actions: list[Action] | None = field(default_factory=list)  # None: keep no record
    _jobs: dict[int, Job] = field(default_factory=dict)
    _events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    _free_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _number: int = 0

    def run(self, jobs: Iterable[Job]) -> None:
        """All jobs, to the end."""
        for job in jobs:
            while self._events and self._events[0][0] <= job.arrived_s:
                self._next()
            self._jobs[job.job_id] = job
            self._do(self.scheduler.arrived(job, job.arrived_s), job.arrived_s)
        while self._events:
            self._next()

    def _next(self) -> None:
        now, _, kind, job_id, item = heapq.heappop(self._events)
        if kind == "encoded":
            self._do(self.scheduler.encoded(job_id, item, now), now)
        elif kind == "first":
            self._do(self.scheduler.token(job_id, now), now)
            self._at(now + self.token_s * self._jobs[job_id].answer_tokens, "end", job_id)
        else:
            self.ended[job_id] = now
            del self._jobs[job_id]
            self._do(self.scheduler.ended(job_id, now), now)

    def _do(self, actions: list[Action], now: float) -> None:
        if not actions:
            return
        if self.actions is not None:
            self.actions += actions
        for action in actions:
            job = self._jobs[action.job_id]
            if isinstance(action, Encode):
                tokens = job.item_tokens[action.item]
                done = self._serve(("encoder", action.endpoint), now, tokens / self.encode_tokens_per_s)
                self._at(done, "encoded", job.job_id, action.item)
            elif isinstance(action, Submit):
                self.started[job.job_id] = now
                work_s = job.prompt_tokens / self.prefill_tokens_per_s
                self._at(self._serve(("replica", action.replica), now, work_s), "first", job.job_id)
            elif isinstance(action, Reject):
                self.rejected.add(job.job_id)

    def _serve(self, server: tuple[str, int], now: float, work_s: float) -> float:
        self._free_s[server] = max(now, self._free_s.get(server, 0.0)) + work_s
        return self._free_s[server]

    def _at(self, when: float, kind: str, job_id: int, item: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, kind, job_id, item))


def arrivals(count: int, rate: float, image_share: float, seed: int = 7) -> Iterator[Job]:
    """Poisson arrivals at `rate` a second; `image_share` of them with one to four pictures of 64 visual tokens."""
    rng = random.Random(seed)
    draw = rng.random  # randint costs four times as much, and a million requests are drawn
    now = 0.0
    for number in range(count):
        now += rng.expovariate(rate)
        images = 1 + int(4 * draw()) if draw() < image_share else 0
        yield job(number, now, images, prompt=8 + int(193 * draw()), answer=1 + int(64 * draw()))


def job(number: int, at: float = 0.0, images: int = 0, prompt: int = 32, answer: int = 8) -> Job:
    """A request with so many pictures of 64 visual tokens, and so many prompt tokens beside them."""
    modality = Modality.IMAGE if images else Modality.TEXT
    return Job(number, modality, (64,) * images, prompt + 64 * images, answer, at, SLO_S[modality])
