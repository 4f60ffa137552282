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

from python_backends.errors import invalid
from python_backends.sampling import SamplingParams, parse_sampling

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
    error: str = ""  # why sequences of this report ended with Finish.ERROR


NO_NEWS = StepReport(
    np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.float32)
)


def failure_report(request_ids: Sequence[int], reason: str) -> StepReport:
    """All these sequences ended without an answer."""
    count = len(request_ids)
    return StepReport(
        np.array(request_ids, np.uint64),
        np.zeros(count, np.int32),
        np.zeros(0, np.int32),
        np.full(count, Finish.ERROR, np.uint8),
        np.zeros(2 * count, np.float32),
        reason,
    )


def report_tensors(report: StepReport) -> dict[str, NDArray[Any]]:
    """The output tensors of llm_decoder; `error` only where there is one."""
    tensors: dict[str, NDArray[Any]] = {name: array for name, array in vars(report).items() if name != "error"}
    if report.error:
        tensors["error"] = np.array([report.error.encode()], np.object_)
    return tensors


def report_from_tensors(tensors: Mapping[str, NDArray[Any]]) -> StepReport:
    """The other way round."""
    arrays = {name: tensors[name] for name in vars(NO_NEWS) if name != "error"}
    return StepReport(**arrays, error=tensors["error"][0].decode() if "error" in tensors else "")


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
    """The submissions of one call; `sampling` holds each one's parameters as JSON (ServingError)."""
    for name in ("request_ids", "tokens", "token_counts"):
        if name not in tensors:
            raise invalid(name, "is missing")
    counts = tensors["token_counts"]
    if not len(tensors["request_ids"]) == len(counts) == len(sampling):
        raise invalid("token_counts", "request_ids, token_counts and sampling must have one element a sequence")
    if (counts < 1).any() or counts.sum() != len(tensors["tokens"]):
        raise invalid(
            "token_counts", f"must be positive, and add up to the {len(tensors['tokens'])} elements of tokens"
        )
    prompts = np.split(tensors["tokens"], np.cumsum(tensors["token_counts"])[:-1])
    visual_tokens = tensors.get("visual_tokens", np.zeros((0, 0), np.float16))
    visual_counts = [int(np.count_nonzero(prompt == VISUAL_TOKEN)) for prompt in prompts]
    if sum(visual_counts) != len(visual_tokens):
        raise invalid("visual_tokens", f"{len(visual_tokens)} rows for {sum(visual_counts)} places in tokens")
    visual = np.split(visual_tokens, np.cumsum(visual_counts)[:-1])
    return [
        Submission(int(request_id), prompt, rows, parse_sampling(text))
        for request_id, prompt, rows, text in zip(tensors["request_ids"], prompts, visual, sampling, strict=True)
    ]
