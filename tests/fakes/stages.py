"""Fake stages for the router: an echo of what it was given, with delays and failures on request."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from python_backends.embeddings.region import PoolReader
from python_backends.embeddings.target import PageTarget
from python_backends.engines.protocol import NO_NEWS, VISUAL_TOKEN, EngineLoad, Finish, StepReport, Submission
from python_backends.errors import ServingError, invalid, tagged
from python_backends.router.stages import Embedding

TOKENS = 4
HIDDEN = 8
MOST_REPLICAS = 2
BROKEN = 99  # a picture whose header is good and whose pixels are not


def gif(number: int) -> bytes:
    """As much of a GIF as the router looks at, told from others by its width."""
    return b"GIF89a" + number.to_bytes(2, "little") + b"\1\0" + bytes(3)


class Hold:
    """An `on_embed` in which every call waits for `go_on`."""

    def __init__(self) -> None:
        self._entered, self._go_on = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        self._entered.set()
        assert self._go_on.wait(20)

    async def entered(self) -> None:
        """Wait for the first call."""
        while not self._entered.is_set():
            await asyncio.sleep(0.001)

    def go_on(self) -> None:
        self._go_on.set()


class FakeStages:
    """The picture `gif(7)` becomes four visual tokens of value 7; the LLM answers with the bytes of a fixed text."""

    def __init__(self, answer: bytes = b"ok") -> None:
        self.answer = answer
        self.tokens, self.hidden = TOKENS, HIDDEN
        self.embedded: list[int] = []
        self.submissions: list[Submission] = []
        self.replicas: list[int] = []  # of each submission
        self.visual_values: list[list[float]] = []  # the first element of each visual token, by submission
        self._pool = PoolReader()
        self.cancelled: list[int] = []
        self.on_embed: Callable[[int], None] = lambda number: None
        self.on_submit: Callable[[Submission], ServingError | None] = lambda submission: (
            invalid("sampling_parameters", "no") if submission.sampling.seed == BROKEN else None
        )
        self.hold_tokens = threading.Event()  # set: no token comes
        self.hush = threading.Event()  # set: no heartbeat comes
        self._reports = [queue.Queue[StepReport | ServingError | None]() for _ in range(MOST_REPLICAS)]

    def embed(self, image: bytes, alone: bool, target: PageTarget | None = None) -> Embedding:
        number = int.from_bytes(image[6:8], "little")
        self.on_embed(number)
        self.embedded.append(number)
        if number == BROKEN:
            raise invalid("image", "it can't be decoded")
        return Embedding(np.full((self.tokens, self.hidden), number, np.float16), 1.0, 2.0, 0.0)

    def attach(self, replica: int) -> Iterator[StepReport]:
        before, reports = self._reports[replica], queue.Queue[StepReport | ServingError | None]()
        while not before.empty():  # said while nobody was attached
            reports.put(before.get())
        self._reports[replica] = reports
        while self._reports[replica] is reports:  # another attach ends this one
            try:
                report = reports.get(timeout=0.1)
            except queue.Empty:
                if self.hush.is_set():
                    continue
                report = NO_NEWS
            if report is None:
                return
            if isinstance(report, ServingError):
                raise report
            yield report

    def submit(self, replica: int, submissions: Sequence[Submission]) -> dict[int, str]:
        self.submissions += submissions
        self.replicas += [replica] * len(submissions)
        self.visual_values += [self._visual_values(submission) for submission in submissions]
        refusals = {s.request_id: self.on_submit(s) for s in submissions}
        refused = {request_id: tagged(error) for request_id, error in refusals.items() if error is not None}
        if self.hold_tokens.is_set():
            return refused
        for submission in submissions:
            if submission.request_id in refused:
                continue
            limit = submission.sampling.max_tokens
            tokens = list(self.answer)[:limit]
            for i, token in enumerate(tokens):
                last = i == len(tokens) - 1
                reason = (Finish.LENGTH if len(tokens) == limit else Finish.STOP) if last else Finish.RUNNING
                self.report(submission.request_id, [token], reason)
        return refused

    def _visual_values(self, submission: Submission) -> list[float]:
        """Read as a decoder worker does."""
        places = np.flatnonzero(submission.tokens == VISUAL_TOKEN)
        rows = np.zeros((len(submission.tokens), self.hidden), np.float32)
        submission.visuals.copy_to(rows, places, self._pool)
        values: list[float] = rows[places, 0].tolist()
        return values

    def report(self, request_id: int, tokens: list[int], finish: Finish) -> None:
        """Let the engine say something."""
        replica = next(
            (r for s, r in zip(self.submissions, self.replicas, strict=True) if s.request_id == request_id), 0
        )
        self._reports[replica].put(
            StepReport(
                np.array([request_id], np.uint64),
                np.array([len(tokens)], np.int32),
                np.array(tokens, np.int32),
                np.array([finish], np.uint8),
                np.array([0.5, 1.5], np.float32),
                EngineLoad(kv_usage=0.25, prompt_tokens=6, reused_tokens=2, waiting=3, step_s=0.5).array(),
            )
        )

    def detach(self, error: ServingError | None = None) -> None:
        """End the channels, as idle or dying replicas do."""
        for reports in self._reports:
            reports.put(error)

    def cancel(self, replica: int, request_ids: Sequence[int]) -> None:
        self.cancelled += request_ids
