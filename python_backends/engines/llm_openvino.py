"""LLM engine adapter: OpenVINO GenAI continuous batching over ready embeddings.

Runs in a worker process (`workers.child`): submissions and cancellations come as calls, tokens leave as the payloads
of `step`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

from python_backends.embeddings.region import PoolReader
from python_backends.engines.openvino_settings import (
    KV_BLOCK_TOKENS,
    device_properties,
    generation_config,
    kv_blocks,
    scheduler_config,
    text_embeddings,
)
from python_backends.engines.pace import Pace
from python_backends.engines.prefix import PrefixAccount
from python_backends.engines.protocol import (
    VISUAL_TOKEN,
    EngineLoad,
    Finish,
    StepReport,
    Submission,
    VisualRows,
)
from python_backends.engines.slices import PICTURES, TEXT, PrefillSlices
from python_backends.engines.step_size import StepSize
from python_backends.engines.text_engine import TextEngine
from python_backends.sampling import SamplingParams
from python_backends.workers.turns import GivingWay

_FIRST_SLICE_ID = 1 << 63  # beyond every request's

_FINISH = {genai.GenerationFinishReason.STOP: Finish.STOP, genai.GenerationFinishReason.LENGTH: Finish.LENGTH}


@dataclass
class _Sequence:
    handle: Any  # None while its prompt is prefilled in slices
    sampling: SamplingParams
    due_s: float  # its first token, by the SLO
    submitted_s: float
    scheduled_s: float | None = None  # begin of the first step that could take it up
    started: bool = False  # its first token is out
    late: bool = False  # it came after `due_s`
    cancelled: bool = False
    reason: Finish = Finish.RUNNING  # as of the last token read


class _Slice:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def is_done(self) -> bool:
        return bool(self._handle.get_status() != genai.GenerationStatus.RUNNING)

    def cancel(self) -> None:
        self._handle.cancel()


class LlmEngine(TextEngine[_Sequence]):
    """One replica of the LLM."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        pool, artifacts = self._deployment.pools.text, self._artifacts
        self._embed = text_embeddings(artifacts / "llm")
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(artifacts / "llm"), scheduler_config(pool, self._checkpoint), "CPU", device_properties(pool)
        )
        self._pool = PoolReader()
        cached_blocks = kv_blocks(pool, self._checkpoint) if pool.prefix_caching else 0
        self._prefixes = PrefixAccount(cached_blocks, KV_BLOCK_TOKENS)
        self._prompt_tokens = self._reused_tokens = 0  # since the last report
        # without slices the engine takes whole prompts, first come, first served
        sliced = pool.prefill_slice_tokens > 0
        least, most = pool.prefill_slice_tokens, pool.prefill_tokens
        of_pictures = max(least, most // 2)
        self._slices = PrefillSlices(KV_BLOCK_TOKENS, of_pictures, self._start_slice) if sliced else None
        self._step_size = StepSize(least, most)
        self._pace = Pace(self._deployment.scheduler.tbt_slo_ms / 1e3)
        vision = self._deployment.pools.vision
        self._encode = GivingWay(vision.instances, vision.cpu_share) if vision.gives_way else None
        self._slice_ids = itertools.count(_FIRST_SLICE_ID)
        self._warm_up()
        self._prompt_tokens = self._reused_tokens = 0
        self._step_size = StepSize(least, most)  # compiling kernels is no step's time

    def step(self) -> StepReport | None:
        """One step of the token loop: prefill chunks and one token for each running sequence."""
        begin = time.monotonic()
        for sequence in self._sequences.values():
            sequence.scheduled_s = sequence.scheduled_s or begin
        decoding = sum(sequence.started for sequence in self._sequences.values())
        self._give_encode_a_turn(decoding)
        begin = time.monotonic()
        prompt_tokens = self._fill_step(decoding, begin)
        if self._pipeline.has_non_finished_requests():
            with self._encode.stopped() if self._encode else contextlib.nullcontext():
                self._pipeline.step()
        now = time.monotonic()
        if self._slices is not None or decoding == len(self._sequences):  # of whole prompts nobody counts the tokens
            self._step_size.took(prompt_tokens, decoding, now - begin)
        return self._collect(now)

    def _give_encode_a_turn(self, decoding: int) -> None:
        """Before a step encode has what decode can spare, unless prompts need it."""
        if self._encode is None:
            return
        prefills = decoding < len(self._sequences)
        spare_s = self._pace.spare_s(time.monotonic(), self._step_size.decode_s(decoding))
        self._encode.give_turn(0.0 if prefills else spare_s)

    def _fill_step(self, decoding: int, now: float) -> int:
        """Start the slices and prompts of the next step; gives their tokens."""
        if self._slices is None or decoding == len(self._sequences):
            return 0
        room = self._step_size.room(decoding, self._pace.slack_s(now))
        ready, tokens = self._slices.begin_step(room)
        for request_id, embeddings in ready:
            sequence = self._sequences[request_id]
            sequence.handle = self._start(request_id, embeddings, sequence.sampling)
        return tokens

    def _submit(self, submission: Submission) -> None:
        embeddings = self._embeddings(submission)
        request_id, handle = submission.request_id, None
        cached = self._prefixes.enter(embeddings[0])
        if self._slices is None:
            handle = self._start(request_id, embeddings, submission.sampling)
        else:
            has_pictures = (submission.tokens == VISUAL_TOKEN).any()
            self._slices.add(request_id, embeddings, PICTURES if has_pictures else TEXT, cached)
        self._sequences[request_id] = _Sequence(handle, submission.sampling, submission.due_s, time.monotonic())
        self._prompt_tokens += embeddings.shape[1]
        self._reused_tokens += cached

    def _start(self, request_id: int, embeddings: NDArray[np.float32], sampling: SamplingParams) -> Any:
        config = generation_config(sampling, self._checkpoint.eos_token_ids)
        return self._pipeline.add_request(request_id, ov.Tensor(embeddings), config)

    def _start_slice(self, embeddings: NDArray[np.float32]) -> _Slice:
        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        return _Slice(self._start(next(self._slice_ids), np.ascontiguousarray(embeddings), sampling))

    def _cancel(self, request_id: int) -> None:
        sequence = self._sequences[request_id]
        sequence.cancelled = True
        if sequence.handle is not None:
            sequence.handle.cancel()
        elif self._slices is not None:
            self._slices.cancel(request_id)

    def _embeddings(self, submission: Submission) -> NDArray[np.float32]:
        """Prompt embeddings [1, tokens, width]: text rows looked up, visual rows in their places (ServingError).

        `width` is the hidden size, and one more with a LoRA adapter: the gate that switches it on, which is 0 in what
        is looked up. It acts on what follows the first picture, but for generated tokens (build_engines.lora).
        """
        tokens = submission.tokens
        places = np.flatnonzero(tokens == VISUAL_TOKEN)
        ids = np.maximum(tokens, 0).astype(np.int64)
        rows = np.array(self._embed([ids[np.newaxis]])[0], np.float32)
        hidden = self._checkpoint.hidden_size
        submission.visuals.copy_to(rows[0, :, -hidden:], places, self._pool)
        if len(places):
            rows[0, _end_of_first_picture(places) : len(tokens) - submission.answered, :-hidden] = 1
        return rows

    def _collect(self, now: float) -> StepReport | None:
        ids: list[int] = []
        counts: list[int] = []
        tokens: list[int] = []
        finish: list[int] = []
        timing: list[float] = []
        decode_s = self._step_size.decode_s(sum(sequence.started for sequence in self._sequences.values()))
        for request_id, sequence in list(self._sequences.items()):
            new = _read(sequence)
            reason = _finish_reason(sequence)
            if not new and reason is Finish.RUNNING:
                continue
            queue_ms = prefill_ms = 0.0
            if new and not sequence.started:
                sequence.started, sequence.late = True, now > sequence.due_s
                assert sequence.scheduled_s is not None
                queue_ms = (sequence.scheduled_s - sequence.submitted_s) * 1e3
                prefill_ms = (now - sequence.scheduled_s) * 1e3
            if new:
                self._pace.got_tokens(request_id, len(new), now, late=sequence.late, decode_s=decode_s)
            ids.append(request_id)
            counts.append(len(new))
            tokens.extend(new)
            finish.append(reason)
            timing += (queue_ms, prefill_ms)
            if reason is not Finish.RUNNING:
                del self._sequences[request_id]
                self._pace.ended(request_id)
        if not ids:
            return None
        return StepReport(
            np.array(ids, np.uint64),
            np.array(counts, np.int32),
            np.array(tokens, np.int32),
            np.array(finish, np.uint8),
            np.array(timing, np.float32),
            self._load().array(),
            "the sequence does not fit into the KV cache (pools.text.kv_cache_mb)" if Finish.ERROR in finish else "",
        )

    def _load(self) -> EngineLoad:
        load = EngineLoad(self._kv_usage(), self._prompt_tokens, self._reused_tokens)
        self._prompt_tokens = self._reused_tokens = 0
        return load

    def _kv_usage(self) -> float:
        """OpenVINO's figure is that of its last step: the end of the last sequence does not show in it."""
        usage: float = self._pipeline.get_metrics().cache_usage / 100
        return usage if self._sequences else 0.0

    def _stats(self) -> dict[str, Any]:
        return {
            "running": len(self._sequences),
            "kv_usage": self._kv_usage(),
            "kv_bytes": self._pipeline.get_metrics().cache_size_in_bytes,
        }

    def _warm_up(self) -> None:
        """Compile kernels for a prefill and a few decode steps before the first client comes."""
        hidden = self._checkpoint.hidden_size
        tokens = np.array([VISUAL_TOKEN] * self._checkpoint.tokens_per_tile + [1] * 8, np.int32)
        visual = np.zeros((self._checkpoint.tokens_per_tile, hidden), np.float16)
        self._submit(Submission(0, tokens, VisualRows(visual), SamplingParams(max_tokens=4, ignore_eos=True)))
        while self.busy:
            self.step()


def _end_of_first_picture(places: NDArray[np.int64]) -> int:
    """The place after the first run of visual tokens, which have these places."""
    breaks = np.flatnonzero(np.diff(places) > 1)
    return int(places[breaks[0] if len(breaks) else -1]) + 1


def _read(sequence: _Sequence) -> list[int]:
    """The tokens that are there, without waiting for more."""
    tokens: list[int] = []
    while sequence.handle is not None and not sequence.cancelled and sequence.handle.can_read():
        outputs = sequence.handle.read()
        if not outputs:
            break  # ignored by the scheduler
        output = next(iter(outputs.values()))
        tokens += output.generated_ids
        sequence.reason = _FINISH.get(output.finish_reason, Finish.RUNNING)
    return tokens


def _finish_reason(sequence: _Sequence) -> Finish:
    if sequence.cancelled:
        return Finish.CANCELLED
    if sequence.handle is None:
        return Finish.RUNNING
    status = sequence.handle.get_status()
    if status == genai.GenerationStatus.RUNNING:
        return Finish.RUNNING
    if status == genai.GenerationStatus.FINISHED and sequence.reason is not Finish.RUNNING:
        return sequence.reason
    return Finish.ERROR  # IGNORED: it does not fit into the KV cache
