"""The scheduler: events in, actions out. No clock, no I/O, no Triton; the router and the tests drive the same code.

A job waits for the encoders (when it has images), then for an LLM replica. Both lines have the same order
(`scheduling.order`); what leaves them is bounded by budgets (`scheduling.budgets`). An endpoint is chosen when the work
starts, by fewest pending tokens (ModServe section 4.3), not when the request arrives.

The first in line that finds no room in the prefill budget is waited for, or a large one would never find any. Meanwhile
other classes may use the room that there is, for a quarter of its own tokens in all: a picture that waits does not
hold up text that fits, and text does not hold up the picture by more than that quarter.

Bound: under any overload of the other classes a job of class c is with a replica within

    aging_s + 5/4 * (A_c + L) * W / (w_c * R) + (B + L) / R    (symbols as in `scheduling.order`, B the prefill budget)

as long as replicas have places for sequences: those end with their answers, whose length is nobody's to bound. One with
images needs its turn at the encoders besides: the same without the 5/4, for their rate and budget; aging counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from python_backends.errors import ServingError, unavailable
from python_backends.scheduling.admission import AdmissionSettings, Load, Memory, refusal
from python_backends.scheduling.budgets import Budget, EncodeController, MeasuredRate
from python_backends.scheduling.jobs import Action, Encode, Job, Modality, Reject, Submit
from python_backends.scheduling.order import WaitingLine

_PASSING_SHARE = 0.25  # of a job's own tokens: what may pass it while there is no room for it


@dataclass(frozen=True)
class SchedulerSettings:
    """All that the scheduler is told at its making."""

    policy: str
    weights: Mapping[Modality, float]  # shares of the aged rank
    admission: AdmissionSettings
    encoders: int  # endpoints
    replicas: int
    encode_budget_tokens: int  # visual tokens in encode at a time, an endpoint
    prefill_budget_tokens: int  # prompt tokens handed to a replica and not yet prefilled
    running_limit: int  # sequences in a replica
    aging_s: float
    longest_gap_s: float  # between tokens, before encode gives way
    largest_item_tokens: int  # the encode budget never shrinks below one item
    budgets: bool = True  # False: only running_limit counts (the baseline)


@dataclass(slots=True)
class _State:
    job: Job
    next_item: int = 0  # the next one to encode
    encoded: set[int] = field(default_factory=set)
    encoder_of: dict[int, tuple[int, float]] = field(default_factory=dict)  # endpoint and start of items in flight
    replica: int | None = None
    passed_tokens: int = 0  # of jobs that went first, while it was the first and there was no room for it
    submitted_s: float = 0.0
    last_token_s: float | None = None


class Scheduler:
    """Every method takes the time of its event and returns what to do now, in order."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        weights = dict(settings.weights)
        self._encode_rate, self._prefill_rate = MeasuredRate(), MeasuredRate()
        self._to_encode = WaitingLine(settings.policy, settings.aging_s, weights, self._encode_rate)
        self._to_submit = WaitingLine(settings.policy, settings.aging_s, weights, self._prefill_rate)
        unlimited = 1 << 62
        self._encode = [
            Budget(settings.encode_budget_tokens if settings.budgets else unlimited) for _ in range(settings.encoders)
        ]
        self._prefill = [
            Budget(settings.prefill_budget_tokens if settings.budgets else unlimited) for _ in range(settings.replicas)
        ]
        self._running = [0] * settings.replicas
        self._pending_tokens = [0] * settings.replicas
        self._states: dict[int, _State] = {}
        self._waiting = dict.fromkeys(Modality, 0)
        self._draining = False
        self._away_until_s = [0.0] * settings.replicas
        self._memory = Memory()
        self._begun: dict[int, Job] = {}  # some of its items are in encode or encoded, others wait
        self._visual = Budget(settings.admission.waiting_visual_tokens)  # from encode to the end of prefill
        self._controller = EncodeController(
            settings.encode_budget_tokens, settings.largest_item_tokens, settings.longest_gap_s
        )

    @property
    def waiting(self) -> Mapping[Modality, int]:
        """Jobs that are not with a replica yet, by class."""
        return self._waiting

    @property
    def encode_tokens_in_flight(self) -> Sequence[int]:
        """By encoder endpoint."""
        return [budget.used for budget in self._encode]

    @property
    def prefill_tokens_in_flight(self) -> Sequence[int]:
        """By replica."""
        return [budget.used for budget in self._prefill]

    @property
    def visual_tokens_waiting(self) -> int:
        """In encode, or encoded and not yet prefilled."""
        return self._visual.used

    @property
    def encode_budget_tokens(self) -> int:
        """As the controller has set it."""
        return self._encode[0].limit

    @property
    def running(self) -> Sequence[int]:
        """Sequences by replica."""
        return self._running

    def arrived(self, job: Job, now: float) -> list[Action]:
        """A new request. The first action is a Reject when it is not admitted."""
        error = self._refusal(job, now)
        if error is not None:
            return [Reject(job.job_id, error)]
        self._states[job.job_id] = _State(job)
        self._waiting[job.modality] += 1
        if job.item_tokens:
            self._to_encode.add(job, job.visual_tokens)
        else:
            self._to_submit.add(job, job.prompt_tokens)
        return self._decide(now)

    def encoded(self, job_id: int, item: int, now: float) -> list[Action]:
        """An item's visual tokens are there."""
        state = self._states.get(job_id)
        in_flight = state.encoder_of.pop(item, None) if state else None
        if state is None or in_flight is None:
            return []
        endpoint, started_s = in_flight
        self._encode_rate.observe(state.job.item_tokens[item], now - started_s)
        self._encode[endpoint].release((job_id, item))
        state.encoded.add(item)
        if len(state.encoded) == len(state.job.item_tokens):
            self._to_submit.add(state.job, state.job.prompt_tokens)
        return self._decide(now)

    def token(self, job_id: int, now: float) -> list[Action]:
        """A sequence brought one or more tokens; the first ends its prefill."""
        state = self._states.get(job_id)
        if state is None or state.replica is None:
            return []
        if state.last_token_s is not None:
            self._controller.gap(now - state.last_token_s)
        first, state.last_token_s = state.last_token_s is None, now
        if not first:
            return []
        self._prefill_rate.observe(state.job.prompt_tokens, now - state.submitted_s)
        self._prefill[state.replica].release((job_id, 0))
        self._visual.release((job_id, 0))
        return self._decide(now)

    def ended(self, job_id: int, now: float) -> list[Action]:
        """A job is over: finished, failed or cancelled, wherever it was. Unknown ones are no error."""
        state = self._states.pop(job_id, None)
        if state is None:
            return []
        self._to_encode.discard(job_id)
        self._to_submit.discard(job_id)
        for item, (endpoint, _) in state.encoder_of.items():
            self._encode[endpoint].release((job_id, item))
        self._visual.release((job_id, 0))
        self._begun.pop(job_id, None)
        if state.replica is None:
            self._waiting[state.job.modality] -= 1
        else:
            self._leave_replica(state)
        return self._decide(now)

    def lost(self, job_id: int, now: float) -> list[Action]:
        """Its replica is gone: it waits for one again, in the line as old as it is. Others are no error."""
        state = self._states.get(job_id)
        if state is None or state.replica is None:
            return []
        self._leave_replica(state)
        state.last_token_s = None
        self._waiting[state.job.modality] += 1
        self._to_submit.add(state.job, state.job.prompt_tokens)
        return self._decide(now)

    def replica_away(self, replica: int, until_s: float) -> None:
        """Its model is not there: until then nothing new is handed to it, unless all are away."""
        self._away_until_s[replica] = until_s

    def drain(self, now: float) -> list[Action]:
        """The end is near: refuse what comes, and those with items that nobody has begun to encode."""
        self._draining = True
        unbegun = {job_id: None for job_id, s in self._states.items() if s.next_item < len(s.job.item_tokens)}
        refused: list[Action] = [Reject(job_id, _draining()) for job_id in unbegun]
        others = [action for job_id in unbegun for action in self.ended(job_id, now)]
        return refused + [a for a in others if a.job_id not in unbegun]

    def tick(self, now: float) -> list[Action]:
        """Time has passed: let the controller look at the gaps."""
        if self._settings.budgets:
            limit = self._controller.tick()
            for budget in self._encode:
                budget.limit = limit
        return self._decide(now)

    def memory(self, used: Memory) -> None:
        """How full the memories are now; admission goes by it."""
        self._memory = used

    def expected_first_token_s(self, job: Job) -> float:
        """Seconds until the first token of a job that would arrive now, from the measured rates."""
        prefill = self._prefill_rate.seconds(self._to_submit.tokens / len(self._running) + job.prompt_tokens)
        if not job.item_tokens:
            return prefill
        return prefill + self._encode_rate.seconds(self._to_encode.tokens / len(self._encode) + job.visual_tokens)

    def _refusal(self, job: Job, now: float) -> ServingError | None:
        if self._draining:
            return _draining()
        alone_s = 0.0
        if job.deadline_s is not None:
            alone_s = self._prefill_rate.seconds(job.prompt_tokens) + self._encode_rate.seconds(job.visual_tokens)
        load = Load(self._waiting, self._memory, self.expected_first_token_s(job), alone_s)
        return refusal(job, now, load, self._settings.admission)

    def _decide(self, now: float) -> list[Action]:
        encodes = self._start_encodes(now) if self._to_encode else []
        return encodes + self._hand_over(now) if self._to_submit else encodes

    def _start_encodes(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while (job := self._next_to_encode(now)) is not None:
            state = self._states[job.job_id]
            tokens = job.item_tokens[state.next_item]
            used = [budget.used for budget in self._encode]
            endpoint = used.index(min(used))
            if not self._encode[endpoint].fits(tokens):
                break  # nobody overtakes: a large one would never find room
            if state.next_item == 0:
                self._visual.hold((job.job_id, 0), job.visual_tokens)
                self._begun[job.job_id] = job
            self._encode[endpoint].hold((job.job_id, state.next_item), tokens)
            state.encoder_of[state.next_item] = (endpoint, now)
            actions.append(Encode(job.job_id, state.next_item, endpoint))
            state.next_item += 1
            if state.next_item == len(job.item_tokens):
                del self._begun[job.job_id]
                self._to_encode.take(job)
        return actions

    def _next_to_encode(self, now: float) -> Job | None:
        """The first in line; while there is no room for its visual tokens, one that has room, and so makes some."""
        job = self._to_encode.first(now)
        if job is None or job.job_id in self._begun or self._visual.fits(job.visual_tokens):
            return job
        return next(iter(self._begun.values()), None)

    def _hand_over(self, now: float) -> list[Action]:
        actions: list[Action] = []
        blocked: list[Modality] = []  # classes whose first finds no room
        blocker: _State | None = None  # the first of all, should it be one of these
        while min(self._running) < self._settings.running_limit:
            job = self._to_submit.first(now, without=blocked)
            if job is None:
                break
            replica = self._emptiest_with_room(job, now)
            if replica is None or not (blocker is None or self._may_pass(job, blocker)):
                blocker = blocker or self._states[job.job_id]
                blocked.append(job.modality)
                continue
            if blocker is not None:
                blocker.passed_tokens += job.prompt_tokens
            actions.append(self._submit(job, replica, now))
        return actions

    def _may_pass(self, job: Job, blocker: _State) -> bool:
        if self._settings.policy == "fcfs":
            return False
        return blocker.passed_tokens + job.prompt_tokens <= _PASSING_SHARE * blocker.job.prompt_tokens

    def _submit(self, job: Job, replica: int, now: float) -> Submit:
        self._prefill[replica].hold((job.job_id, 0), job.prompt_tokens)
        self._to_submit.take(job)
        state = self._states[job.job_id]
        state.replica, state.submitted_s = replica, now
        self._running[replica] += 1
        self._pending_tokens[replica] += job.sequence_tokens
        self._waiting[job.modality] -= 1
        return Submit(job.job_id, replica)

    def _leave_replica(self, state: _State) -> None:
        assert state.replica is not None
        self._prefill[state.replica].release((state.job.job_id, 0))
        self._running[state.replica] -= 1
        self._pending_tokens[state.replica] -= state.job.sequence_tokens
        state.replica = None

    def _emptiest_with_room(self, job: Job, now: float) -> int | None:
        """The replica with the fewest pending tokens among those that can take the job now."""
        best, fewest = None, 0
        all_away = min(self._away_until_s) > now
        for replica, running in enumerate(self._running):
            pending = self._pending_tokens[replica]
            if (
                running < self._settings.running_limit
                and (all_away or self._away_until_s[replica] <= now)
                and (best is None or pending < fewest)
                and self._prefill[replica].fits(job.prompt_tokens)
            ):
                best, fewest = replica, pending
        return best


def _draining() -> ServingError:
    return unavailable("draining: this server is about to stop; ask another one")
