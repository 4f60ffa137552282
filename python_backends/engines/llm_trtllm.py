"""LLM engine adapter: TensorRT-LLM's LLM API (PyTorch backend, in-flight batching).

Runs in a worker process (`workers.child`), which sees the replica's GPUs only. The engine steps by itself; `step` waits
for a moment for what it has to say.
"""

from __future__ import annotations

import os
import queue
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from python_backends.engines.protocol import NO_VISUALS, EngineLoad, Finish, StepReport, Submission
from python_backends.engines.text_engine import TextEngine
from python_backends.engines.trtllm_api import REMEDY, load_api, read_model_facts, sampling_arguments, text_of
from python_backends.engines.trtllm_loop import AsyncLlm, News
from python_backends.engines.trtllm_prompts import Prompts
from python_backends.sampling import SamplingParams
from python_backends.workers.targets import require, require_cuda

_WAIT_S = 0.002  # of a step: calls go between two


@dataclass
class _Sequence:
    submitted_s: float
    started: bool = False  # its first token is out


class LlmEngine(TextEngine[_Sequence]):
    """One replica of the LLM.

    Raises MissingRuntime for what is not there: artifacts, PyTorch, a GPU, TensorRT-LLM.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        pool, artifacts = self._deployment.pools.text, self._artifacts
        self._stall_s = pool.stall_timeout_ms / 1000
        model = read_model_facts(artifacts)
        arguments = yaml.safe_load(text_of(artifacts / "model.yaml"))
        torch = require("torch", "PyTorch", REMEDY)
        require_cuda(torch)
        if pool.tensor_parallel == 1:
            # else it spawns an MPI process, which needs trtllm-llmapi-launch around the whole server
            os.environ.setdefault("TLLM_WORKER_USE_SINGLE_PROCESS", "1")
        shares_gpu = self._deployment.pages_gpu is not None
        self._api = load_api(shares_gpu)
        self._prompts = Prompts(torch, self._api, model)
        self._llm = AsyncLlm(
            lambda: self._api.LLM(model=str(artifacts / "llm"), **arguments),
            torch,
            self._api.SharedTensorContainer.keeping if shares_gpu else nullcontext,
        )
        self._heard_s = time.monotonic()
        self._prompt_tokens = self._reused_so_far = 0
        self._warm_up()
        self._prompt_tokens = 0

    def step(self) -> StepReport | None:
        """What came within a moment.

        Raises:
            RuntimeError: nothing came for pools.text.stall_timeout_ms: the worker ends, and a new one loads.
        """
        news = self._wait()
        now = time.monotonic()
        if news:
            self._heard_s = now
            return self._report(news, now)
        if self._sequences and now - self._heard_s > self._stall_s:
            raise RuntimeError(f"the engine said nothing for {self._stall_s:g} s (pools.text.stall_timeout_ms)")
        return None

    def close(self) -> None:
        """Shut the engine down."""
        self._llm.close()

    def _wait(self) -> list[News]:
        news: list[News] = []
        try:
            news.append(self._llm.news.get(timeout=_WAIT_S))
            while True:
                news.append(self._llm.news.get_nowait())
        except queue.Empty:
            return [one for one in news if one.request_id in self._sequences]

    def _submit(self, submission: Submission) -> None:
        call = self._prompts.call(submission)
        values = sampling_arguments(submission.sampling, self._checkpoint.eos_token_ids)
        self._llm.start(submission.request_id, call, self._api.SamplingParams(**values))
        if not self._sequences:
            self._heard_s = time.monotonic()
        self._sequences[submission.request_id] = _Sequence(time.monotonic())
        self._prompt_tokens += len(submission.tokens)

    def _cancel(self, request_id: int) -> None:
        self._llm.abort(request_id)
        self._llm.news.put(News(request_id, [], Finish.CANCELLED))

    def _report(self, news: list[News], now: float) -> StepReport:
        timing: list[float] = []
        for one in news:
            sequence = self._sequences.get(one.request_id)
            first = sequence is not None and bool(one.tokens) and not sequence.started
            if sequence is not None and first:
                sequence.started = True
                # the engine does not tell when it took a sequence up: its own queue counts as prefill
                timing += (0.0, (now - sequence.submitted_s) * 1e3)
            else:
                timing += (0.0, 0.0)
            if one.finish is not Finish.RUNNING:
                self._sequences.pop(one.request_id, None)
        return StepReport(
            np.array([one.request_id for one in news], np.uint64),
            np.array([len(one.tokens) for one in news], np.int32),
            np.array([token for one in news for token in one.tokens], np.int32),
            np.array([one.finish for one in news], np.uint8),
            np.array(timing, np.float32),
            self._load().array(),
            "; ".join(dict.fromkeys(one.error for one in news if one.error)),
        )

    def _load(self) -> EngineLoad:
        statistics = self._llm.statistics
        reused = max(0, statistics.reused_tokens - self._reused_so_far)
        usage = statistics.kv_usage if self._sequences else 0.0
        load = EngineLoad(usage, self._prompt_tokens, reused, statistics.queued, statistics.step_ms / 1e3)
        self._reused_so_far, self._prompt_tokens = statistics.reused_tokens, 0
        return load

    def _stats(self) -> dict[str, Any]:
        statistics = self._llm.statistics
        return {
            "running": len(self._sequences),
            "queued": statistics.queued,
            "kv_usage": statistics.kv_usage if self._sequences else 0.0,
            "step_ms": statistics.step_ms,
            "gpu_mb": statistics.gpu_mb,
        }

    def _warm_up(self) -> None:
        """One short sequence through the engine: what is wrong shows now, and not to the first client."""
        tokens = np.ones(8, np.int32)
        self._submit(Submission(0, tokens, NO_VISUALS, SamplingParams(max_tokens=2, ignore_eos=True)))
        while self.busy:
            report = self.step()
            if report is not None and report.error:
                raise RuntimeError(f"the first sequence failed: {report.error}")
