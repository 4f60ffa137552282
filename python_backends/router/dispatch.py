"""Drives the scheduler in production: its actions wake the coroutines of the requests they are about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from python_backends import metrics
from python_backends.checkpoint import Checkpoint
from python_backends.deployment import Deployment
from python_backends.engines.pace import MOST_AHEAD
from python_backends.media.layout import Layout
from python_backends.metrics import Metrics
from python_backends.scheduling.admission import UNLIMITED, AdmissionSettings, Memory
from python_backends.scheduling.jobs import Action, Encode, Job, Modality, Reject
from python_backends.scheduling.scheduler import Scheduler, SchedulerSettings

TICK_S = 0.1
AWAY_S = 2.0  # how long a replica that nobody reached is avoided


class Dispatcher:
    """One for the router; lives on its event loop."""

    def __init__(self, deployment: Deployment, checkpoint: Checkpoint, metrics: Metrics) -> None:
        self._metrics = metrics
        self._scheduler = Scheduler(scheduler_settings(deployment, checkpoint))
        self._kv_setting = deployment.pools.text.kv_setting
        self.kv_usage = [0.0] * deployment.pools.text.replicas  # as each replica said last
        self._tickets: dict[int, Ticket] = {}
        self._ticker: asyncio.Task[None] | None = None

    def arrive(self, job: Job, pages: float = 0.0) -> Ticket:
        """Admit a request (ServingError when it is refused). Close the ticket when the request is over.

        `pages`: share of the embedding pool that running requests hold.
        """
        self._scheduler.memory(Memory(self._kv_of_the_roomiest(), pages, self._kv_setting))
        ticket = Ticket(self, job)
        self._tickets[job.job_id] = ticket
        actions = self._scheduler.arrived(job, time.monotonic())
        if actions and isinstance(actions[0], Reject):
            del self._tickets[job.job_id]
            raise actions[0].error
        self.do(actions)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        return ticket

    def encoded(self, job_id: int, item: int) -> None:
        """See `Scheduler`; so for the next two."""
        self.do(self._scheduler.encoded(job_id, item, time.monotonic()))

    def token(self, job_id: int) -> None:
        """A sequence moved."""
        self.do(self._scheduler.token(job_id, time.monotonic()))

    def lost(self, job_id: int) -> None:
        """The replica of a request is gone."""
        self.do(self._scheduler.lost(job_id, time.monotonic()))

    def ended(self, job_id: int) -> None:
        """A request is over, in whatever way."""
        if self._tickets.pop(job_id, None) is not None:
            self.do(self._scheduler.ended(job_id, time.monotonic()))

    def note_kv_usage(self, replica: int, usage: float) -> None:
        """A replica says so; shown with the next tick, at once when there will be none."""
        self.kv_usage[replica] = usage
        if not self._tickets:
            self._metrics.record(metrics.KV_USAGE, usage, replica=str(replica))

    def _kv_of_the_roomiest(self) -> float:
        """A request needs one replica with room. Where nothing runs, what was said last is history."""
        running = self._scheduler.running
        return min(usage if running[replica] else 0.0 for replica, usage in enumerate(self.kv_usage))

    def replica_away(self, replica: int) -> None:
        """Nobody answers there; to be said again and again as long as it is so."""
        self._scheduler.replica_away(replica, time.monotonic() + AWAY_S)

    def drain(self) -> None:
        """Nothing is admitted any more."""
        self.do(self._scheduler.drain(time.monotonic()))

    def do(self, actions: Sequence[Action]) -> None:
        """Wake those whose turn it is."""
        for action in actions:
            ticket = self._tickets.get(action.job_id)
            if ticket is not None:
                ticket.wake(action)

    def close(self) -> None:
        """No more ticks."""
        if self._ticker is not None:
            self._ticker.cancel()

    async def _tick(self) -> None:
        while self._tickets:
            await asyncio.sleep(TICK_S)
            self.do(self._scheduler.tick(time.monotonic()))
            self._show()
        self._show()

    def _show(self) -> None:
        scheduler, record = self._scheduler, self._metrics.record
        for modality in Modality:
            tickets = [ticket for ticket in self._tickets.values() if ticket.job.modality is modality]
            waiting = [ticket.job.prompt_tokens for ticket in tickets if ticket.waits]
            record(metrics.WAITING, len(waiting), modality=modality.value)
            record(metrics.PENDING_TOKENS, sum(waiting), modality=modality.value)
            record(metrics.RUNNING_REQUESTS, len(tickets) - len(waiting), modality=modality.value)
        for replica, running in enumerate(scheduler.running):
            record(metrics.RUNNING, running, replica=str(replica))
            record(metrics.KV_USAGE, self.kv_usage[replica], replica=str(replica))
            record(metrics.PREFILL_TOKENS, scheduler.prefill_tokens_in_flight[replica], replica=str(replica))
        record(metrics.ENCODE_TOKENS, sum(scheduler.encode_tokens_in_flight))
        record(metrics.ENCODE_BUDGET, scheduler.encode_budget_tokens)


class Ticket:
    """A request's place with the scheduler."""

    def __init__(self, dispatcher: Dispatcher, job: Job) -> None:
        loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self.job = job
        self._encode_turns: list[asyncio.Future[int]] = [loop.create_future() for _ in job.item_tokens]
        self._replica: asyncio.Future[int] = loop.create_future()

    @property
    def waits(self) -> bool:
        """Whether no replica has it yet."""
        return not self._replica.done()

    async def encode_turn(self, item: int) -> int:
        """Wait until this item may be encoded; gives the encoder endpoint."""
        return await self._encode_turns[item]

    def encoded(self, item: int) -> None:
        """This item's visual tokens are there."""
        self._dispatcher.encoded(self.job.job_id, item)

    async def replica(self) -> int:
        """Wait until the request may be handed over; gives the replica, chosen with full information."""
        return await self._replica

    async def another_replica(self) -> int:
        """The same after the replica was lost, which may be the one that is chosen should it be back."""
        self._replica = asyncio.get_running_loop().create_future()
        self._dispatcher.lost(self.job.job_id)
        return await self._replica

    def token(self) -> None:
        """Tokens have come."""
        self._dispatcher.token(self.job.job_id)

    def close(self) -> None:
        """The request is over: answered, refused or cancelled."""
        self._dispatcher.ended(self.job.job_id)

    def wake(self, action: Action) -> None:
        """Called by the dispatcher."""
        if isinstance(action, Reject):
            for waiting in self._encode_turns:
                if not waiting.done():
                    waiting.set_exception(action.error)
            return
        if isinstance(action, Encode):
            turn, place = self._encode_turns[action.item], action.endpoint
        else:
            turn, place = self._replica, action.replica
        if not turn.cancelled():
            turn.set_result(place)


def scheduler_settings(deployment: Deployment, checkpoint: Checkpoint) -> SchedulerSettings:
    """The deployment file's values as the scheduler takes them."""
    values, pools = deployment.scheduler, deployment.pools
    classes = {modality: getattr(values.classes, modality.value) for modality in Modality}
    return SchedulerSettings(
        policy=values.policy,
        weights={modality: policy.weight for modality, policy in classes.items()},
        admission=admission_settings(deployment, checkpoint),
        encoders=1,  # Triton spreads the calls over the instances of one model; a list once there are remote pools
        replicas=pools.text.replicas,
        encode_budget_tokens=values.encode_budget_tokens,
        prefill_budget_tokens=values.prefill_budget_tokens,
        running_limit=pools.text.max_running,
        aging_s=values.aging_ms / 1e3,
        longest_gap_s=values.tbt_slo_ms / 1e3 * (MOST_AHEAD if pools.text.prefill_slice_tokens else 1),
        largest_item_tokens=Layout.of(checkpoint).most_tokens,
        budgets=values.budgets,
    )


def admission_settings(deployment: Deployment, checkpoint: Checkpoint) -> AdmissionSettings:
    """The same for admission, which counts in tokens."""
    values, admission = deployment.scheduler, deployment.admission
    text = deployment.pools.text
    kv_tokens = (text.kv_cache_mb << 20) // checkpoint.kv_bytes_per_token if text.device == "cpu" else UNLIMITED
    limits = AdmissionSettings(
        queue_limits={modality: getattr(values.classes, modality.value).queue_limit for modality in Modality},
        waiting_visual_tokens=int(admission.waiting_visual_mb * 2**20) // (2 * checkpoint.hidden_size),  # float16
        kv_tokens=kv_tokens,
        memory_watermark=admission.memory_watermark,
        breaker_pressure=admission.breaker_pressure,
        breaker_tokens=admission.breaker_tokens,
    )
    return replace(limits, encode_budget_tokens=values.encode_budget_tokens) if values.budgets else limits
