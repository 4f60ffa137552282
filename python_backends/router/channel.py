"""The router's end of one replica's decoder channel.

One thread follows the replica and passes every step report to the event loop in one hop; submissions and cancellations
that wait are sent together, off the request path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

from python_backends.engines.protocol import HEARTBEAT_S, EngineLoad, Finish, StepReport, Submission
from python_backends.errors import ServingError, StageGone, unavailable, untagged
from python_backends.router.calls import BlockingCalls
from python_backends.router.stages import Stages

log = logging.getLogger(__name__)

SILENCE_S = 8 * HEARTBEAT_S  # a replica with sequences that says nothing for so long is dead


@dataclass
class Tokens:
    """News of one sequence, of one step or of several."""

    tokens: list[int]
    finish: Finish
    queue_ms: float  # with the first token: time in the engine before its first step
    prefill_ms: float  # with the first token: from that step on

    def join(self, later: Tokens) -> None:
        """Add what came after it."""
        self.tokens += later.tokens
        self.finish = later.finish


@dataclass(eq=False)
class Sequence:
    """One sequence in a replica; iterate over it for its tokens."""

    submission: Submission
    _tokens: Tokens | None = None  # not taken up yet: what comes meanwhile joins it
    _error: ServingError | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aiter__(self) -> AsyncIterator[Tokens]:
        """News until the sequence has finished (ServingError when its replica is gone)."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            news, self._tokens = self._tokens, None
            if news is not None:
                yield news
                if news.finish is not Finish.RUNNING:
                    return
            if self._error is not None:
                raise self._error

    def put(self, news: Tokens) -> None:
        """Called by the channel."""
        if self._tokens is None:
            self._tokens = news
        else:
            self._tokens.join(news)
        self._arrived.set()

    def fail(self, error: ServingError) -> None:
        """Called by the channel; what came before is still given."""
        self._error = error
        self._arrived.set()


class DecoderChannel:
    """All traffic with one replica. Lives on one event loop; only the follower thread is elsewhere."""

    def __init__(self, stages: Stages, replica: int, on_load: Callable[[int, EngineLoad], None]) -> None:
        """`on_load` is called with the replica and its engine's figures after every step."""
        self.replica = replica
        self._on_load = on_load
        self._stages = stages
        self._loop = asyncio.get_running_loop()
        self._calls = self._make_calls()
        self._sequences: dict[int, Sequence] = {}
        self._to_submit: list[Submission] = []
        self._to_cancel: list[int] = []
        self._sender: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._attached = False
        self._link = 0  # number of the present link; what an earlier one still says is not heard
        self._heard = 0.0

    def submit(self, submission: Submission) -> Sequence:
        """Hand a sequence over; its tokens come from the result."""
        sequence = Sequence(submission)
        self._sequences[submission.request_id] = sequence
        self._to_submit.append(submission)
        self._wake_sender()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence and end it in the engine."""
        request_id = sequence.submission.request_id
        if self._sequences.pop(request_id, None) is None:
            return  # it has finished
        unsent = [s for s in self._to_submit if s.request_id != request_id]
        if len(unsent) < len(self._to_submit):
            self._to_submit = unsent
            return
        self._to_cancel.append(request_id)
        self._wake_sender()

    def close(self) -> None:
        """No more calls; the follower ends with its replica."""
        self._calls.close()

    def _make_calls(self) -> BlockingCalls:
        return BlockingCalls(1, f"llm_decoder_{self.replica}")  # one call at a time: what waits goes together

    def _wake_sender(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._to_submit or self._to_cancel:
            submissions, self._to_submit = self._to_submit, []
            cancels, self._to_cancel = self._to_cancel, []
            try:
                if submissions:
                    self._attach()
                    refused = await self._calls.run(partial(self._stages.submit, self.replica, submissions))
                    for request_id, text in refused.items():
                        self._fail([request_id], untagged(text))
                if cancels:
                    await self._calls.run(partial(self._stages.cancel, self.replica, cancels))
            except ServingError as error:
                self._fail([s.request_id for s in submissions], error)
            except Exception as error:
                log.exception("llm_decoder_%d: a call broke", self.replica)
                reason = unavailable(f"llm_decoder_{self.replica}: a call broke: {type(error).__name__}: {error}")
                self._fail([s.request_id for s in submissions], reason)

    def _attach(self) -> None:
        if self._attached:
            return
        self._attached = True
        self._link += 1
        self._heard = time.monotonic()
        threading.Thread(target=self._follow, args=(self._link,), name=f"follow-{self.replica}", daemon=True).start()
        self._watch = self._loop.create_task(self._watch_silence())

    def _follow(self, link: int) -> None:
        """The follower thread: from attach to the end of the channel. A replica whose stub died never ends it."""
        error: ServingError | None = None
        try:
            for report in self._stages.attach(self.replica):
                self._tell_loop(self._dispatch, link, report)
        except ServingError as failure:
            error = failure
        except Exception as failure:
            log.exception("llm_decoder_%d: the channel broke", self.replica)
            error = unavailable(f"llm_decoder_{self.replica}: the channel broke: {failure}")
        self._tell_loop(self._detached, link, error)

    def _tell_loop(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *args)

    def _dispatch(self, link: int, report: StepReport) -> None:
        if link != self._link:
            return
        self._heard = time.monotonic()
        load = report.load
        if load is not None:
            self._on_load(self.replica, load)
        start = 0
        ids, counts = report.request_ids.tolist(), report.token_counts.tolist()
        tokens, reasons, timing = report.tokens.tolist(), report.finish_reasons.tolist(), report.timing.tolist()
        for i, (request_id, count) in enumerate(zip(ids, counts, strict=True)):
            finish = Finish(reasons[i])
            done = finish is not Finish.RUNNING
            sequence = self._sequences.pop(request_id, None) if done else self._sequences.get(request_id)
            if sequence is None:
                pass  # cancelled here, while the step was running there
            elif finish is Finish.ERROR:
                sequence.fail(unavailable(f"llm_decoder_{self.replica}: {report.error}"))
            else:
                news = Tokens(tokens[start : start + count], finish, timing[2 * i], timing[2 * i + 1])
                sequence.put(news)
            start += count

    def _detached(self, link: int, error: ServingError | None) -> None:
        if link != self._link:
            return
        self._attached = False
        if self._watch is not None:
            self._watch.cancel()
        if error is not None:
            self._lose_all(error)
        elif self._sequences:
            self._attach()  # another router was attached, or the model is unloaded

    async def _watch_silence(self) -> None:
        while time.monotonic() - self._heard < SILENCE_S:
            await asyncio.sleep(HEARTBEAT_S)
            if not self._sequences:
                self._heard = time.monotonic()  # it has nothing to say
        self._attached = False  # the next submission attaches anew
        self._link += 1
        self._lose_all(StageGone(f"llm_decoder_{self.replica}: silent for {SILENCE_S:g} s"))

    def _lose_all(self, error: ServingError) -> None:
        """The replica is gone, and with it what was handed over; a call that is in it may never come back."""
        unsent = {submission.request_id for submission in self._to_submit}
        self._to_submit = []
        self._to_cancel += [request_id for request_id in self._sequences if request_id not in unsent]  # should it live
        if self._sender is not None and not self._sender.done():
            self._sender.cancel()
            self._sender = None
            self._calls.close()
            self._calls = self._make_calls()
        self._fail(list(self._sequences), error)

    def _fail(self, request_ids: list[int], error: ServingError) -> None:
        for request_id in request_ids:
            sequence = self._sequences.pop(request_id, None)
            if sequence is not None:
                sequence.fail(error)


def new_request_id() -> int:
    """Unique over restarts of the router too: a replica may still run what an earlier one submitted."""
    return secrets.randbits(63)
