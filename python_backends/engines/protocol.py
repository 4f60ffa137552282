"""What router and LLM replicas say to each other: submissions one way, step reports the other.

Both sides use these classes; the tensors of the model llm_decoder are their fields. An engine knows token ids and
visual tokens, never text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.sampling import SamplingParams

VISUAL_TOKEN = -1  # in Submission.tokens: the next row of visual_tokens stands here
HEARTBEAT_S = 0.25  # a replica's channel is never silent for longer


class Finish(IntEnum):
    """Why a sequence ended, as it crosses the channel."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


@dataclass(frozen=True)
class Submission:
    """One sequence for an engine. `max_tokens` of the sampling is set."""

    request_id: int  # unique for the lifetime of a replica; 63 bits
    tokens: NDArray[np.int32]  # [prompt length], VISUAL_TOKEN where a visual token stands
    visual_tokens: NDArray[np.float16]  # [number of VISUAL_TOKEN, hidden]
    sampling: SamplingParams


@dataclass(frozen=True)
class StepReport:
    """What one engine step brought, for all sequences that moved. Empty: a heartbeat."""

    request_ids: NDArray[np.uint64]  # [n]
    token_counts: NDArray[np.int32]  # [n] new tokens of each
    tokens: NDArray[np.int32]  # [sum of token_counts]
    finish_reasons: NDArray[np.uint8]  # [n] Finish
    timing: NDArray[np.float32]  # [2n] queue and prefill in ms, with a sequence's first token; else 0


NO_NEWS = StepReport(
    np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.float32)
)


def failure_report(request_ids: Sequence[int]) -> StepReport:
    """All these sequences ended without an answer: their worker is gone."""
    count = len(request_ids)
    return StepReport(
        np.array(request_ids, np.uint64),
        np.zeros(count, np.int32),
        np.zeros(0, np.int32),
        np.full(count, Finish.ERROR, np.uint8),
        np.zeros(2 * count, np.float32),
    )


def report_tensors(report: StepReport) -> dict[str, NDArray[Any]]:
    """The output tensors of llm_decoder."""
    return dict(vars(report))


def report_from_tensors(tensors: Mapping[str, NDArray[Any]]) -> StepReport:
    """The other way round."""
    return StepReport(**{name: tensors[name] for name in vars(NO_NEWS)})


def submission_tensors(submissions: Sequence[Submission]) -> dict[str, NDArray[Any]]:
    """Several submissions as the input tensors of one call."""
    tensors: dict[str, NDArray[Any]] = {
        "request_ids": np.array([s.request_id for s in submissions], np.uint64),
        "tokens": np.concatenate([s.tokens for s in submissions]),
        "token_counts": np.array([len(s.tokens) for s in submissions], np.int32),
        "sampling": np.array([s.sampling.model_dump_json().encode() for s in submissions], np.object_),
    }
    visual = [s.visual_tokens for s in submissions if len(s.visual_tokens)]
    if visual:
        tensors["visual_tokens"] = np.concatenate(visual)
    return tensors


def submissions_from_tensors(tensors: Mapping[str, NDArray[Any]], sampling: Sequence[str]) -> list[Submission]:
    """The submissions of one call; `sampling` holds each one's parameters as JSON."""
    prompts = np.split(tensors["tokens"], np.cumsum(tensors["token_counts"])[:-1])
    visual_tokens = tensors.get("visual_tokens", np.zeros((0, 0), np.float16))
    counts = [int(np.count_nonzero(prompt == VISUAL_TOKEN)) for prompt in prompts]
    visual = np.split(visual_tokens, np.cumsum(counts)[:-1])
    return [
        Submission(int(request_id), prompt, rows, SamplingParams.model_validate_json(text))
        for request_id, prompt, rows, text in zip(tensors["request_ids"], prompts, visual, sampling, strict=True)
    ]
