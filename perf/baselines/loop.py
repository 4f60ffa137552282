"""The token loop of a baseline: one thread that encodes (or waits for an encoder process), submits and steps."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.baselines.encoders import Encoder
from perf.baselines.order import Waiting, plan
from perf.deployments import llm_config
from python_backends.engines.protocol import NO_VISUALS, Finish, Submission, VisualRows, submission_tensors
from python_backends.router.prompt import Prompt
from python_backends.sampling import SamplingParams

# The general default of a step's prompt tokens, and prompts in order of arrival, whatever the product is tuned to.
_TEXT_POOL = {"prefill_tokens": 256, "prefill_slice_tokens": 0}
OnTokens = Callable[[list[int], bool, str], None]  # new tokens, whether they are the last, an error


@dataclass
class Job:
    """A request on its way into the engine."""

    prompt: Prompt
    tiles: NDArray[np.uint8]  # [pictures, side, side, 3]
    sampling: SamplingParams
    on_tokens: OnTokens  # called in the loop's thread
    arrived_s: float = field(default_factory=time.monotonic)
    visual: list[NDArray[np.float16]] = field(default_factory=list)  # [pictures done, tokens, hidden] in all
    cancelled: bool = False  # set from any thread: nobody waits for it any more

    @property
    def pictures_left(self) -> int:
        """Not encoded yet."""
        return len(self.tiles) - sum(len(part) for part in self.visual)


def load_llm(artifacts: Path, threads: int) -> Any:
    """The product's LLM adapter, for a token loop of its own."""
    from python_backends.engines.llm_openvino import LlmEngine  # noqa: PLC0415  (OpenVINO loads for seconds)

    return LlmEngine(llm_config(artifacts, **_TEXT_POOL, threads=threads))


class TokenLoop:
    """Runs jobs on an LLM engine; an encoder with a thread of its own (`in_background`) is not in the loop."""

    def __init__(self, engine: Any, encoder: Encoder, policy: str) -> None:
        self._engine = engine
        self._encoder = encoder
        self._encode_thread = encoder.in_background()
        self._policy = policy
        self._arrivals: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Job] = {}
        self._running: dict[int, Job] = {}
        threading.Thread(target=self._run, name="token-loop", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or runs in it."""
        return bool(self._waiting or self._running or not self._arrivals.empty())

    def add(self, job: Job) -> None:
        """Take a job; its tokens come to its callback. Thread-safe."""
        if self._encode_thread is None or not job.pictures_left:
            self._arrivals.put(job)
        else:
            self._encode_thread.submit(self._encode_then_add, job)

    def _encode_then_add(self, job: Job) -> None:
        if job.cancelled:
            return
        try:
            job.visual = [self._encoder.encode(job.tiles)]
        except Exception as error:
            job.on_tokens([], True, f"encode failed: {error}")
        else:
            self._arrivals.put(job)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # a server without its loop would only hang its clients

    def _serve(self) -> None:
        while True:
            if not (self._waiting or self._running):
                self._accept(self._arrivals.get())
            while not self._arrivals.empty():
                self._accept(self._arrivals.get())
            self._drop_cancelled()
            self._admit()
            if self._running:
                self._step()

    def _accept(self, job: Job) -> None:
        self._waiting[next(self._numbers)] = job

    def _drop_cancelled(self) -> None:
        self._waiting = {number: job for number, job in self._waiting.items() if not job.cancelled}
        gone = [number for number, job in self._running.items() if job.cancelled]
        if gone:
            self._engine.handle("cancel", [np.array(gone, np.uint64)], {})
            self._running = {number: job for number, job in self._running.items() if not job.cancelled}

    def _admit(self) -> None:
        now = time.monotonic()
        waiting = [Waiting(number, job.arrived_s, job.pictures_left) for number, job in self._waiting.items()]
        for number, pictures in plan(waiting, now, self._policy, bool(self._running)).encode:
            job = self._waiting[number]
            if pictures:
                done = len(job.tiles) - job.pictures_left
                job.visual.append(self._encoder.encode(job.tiles[done : done + pictures]))
            if not job.pictures_left:
                self._submit(number, self._waiting.pop(number))

    def _submit(self, number: int, job: Job) -> None:
        counts = [part.shape[1] for part in job.visual for _ in part]
        rows = [part.reshape(-1, part.shape[-1]) for part in job.visual]
        visuals = VisualRows(np.concatenate(rows)) if rows else NO_VISUALS
        submission = Submission(number, job.prompt.with_visual_tokens(counts), visuals, job.sampling)
        tensors = submission_tensors([submission])
        sampling = [tensors.pop("sampling")[0].decode()]
        _, meta = self._engine.handle("submit", list(tensors.values()), {"names": list(tensors), "sampling": sampling})
        if refused := meta["refused"].get(number):
            job.on_tokens([], True, refused)
        else:
            self._running[number] = job

    def _step(self) -> None:
        report = self._engine.step()
        if report is None:
            return
        ends: Any = np.cumsum(report.token_counts)
        for number, end, count, reason in zip(
            report.request_ids.tolist(),
            ends.tolist(),
            report.token_counts.tolist(),
            report.finish_reasons.tolist(),
            strict=True,
        ):
            last = reason != Finish.RUNNING
            job = self._running.pop(number, None) if last else self._running.get(number)
            if job is not None:  # else it was cancelled
                job.on_tokens(report.tokens[end - count : end].tolist(), last, report.error)
