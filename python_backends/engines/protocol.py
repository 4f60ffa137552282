"""What router and LLM replicas say to each other: submissions one way, step reports the other.

Both sides use these classes; the tensors of the model llm_decoder are their fields. An engine knows token ids and
visual tokens, never text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.half import put_rows
from python_backends.embeddings.region import NO_PAGES, PoolReader
from python_backends.errors import invalid
from python_backends.sampling import SamplingParams, parse_sampling

VISUAL_TOKEN = -1  # in Submission.tokens: the next visual token stands here
HEARTBEAT_S = 0.25  # while sequences run, a replica's channel is never silent for longer


class Finish(IntEnum):
    """Why a sequence ended, as it crosses the channel."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


# columns of what is told of images, int32 [images, 11]
IMAGE_TOKENS = 0  # visual tokens
GRID = slice(1, 3)  # rows and columns that they are laid out in; 0 where the family has no such thing
HASH = slice(3, 11)  # of the content, as TensorRT-LLM takes it
NO_IMAGES: NDArray[np.int32] = np.zeros((0, 11), np.int32)


@dataclass(frozen=True)
class VisualRows:
    """The visual tokens of one sequence in order: copied, or in pages of the router's embedding pool."""

    copied: NDArray[np.float16]  # [tokens, hidden]; none when they are in pages
    pages: NDArray[np.int64] = field(default_factory=lambda: NO_PAGES)  # see embeddings.region
    pool: str = ""  # address of the pool
    images: NDArray[np.int32] = field(default_factory=lambda: NO_IMAGES)  # see above; none: nobody says

    def copy_to(self, target: NDArray[np.float32], places: NDArray[np.int64], reader: PoolReader) -> None:
        """Put the rows in their places of `target` [tokens, hidden]; the pages are not needed after it.

        Raises:
            ServingError: see `PoolReader.copy`.
        """
        if len(self.pages):
            reader.copy(self.pool, self.pages, target, places)
        elif len(places):
            put_rows(self.copied, target, places)


def describe_images(
    tokens: Sequence[int], grids: Sequence[tuple[int, int]], keys: Sequence[bytes]
) -> NDArray[np.int32]:
    """What is told of images: visual tokens of each, their grid (see GRID), and 32 bytes that tell its content."""
    told = np.zeros((len(keys), NO_IMAGES.shape[1]), np.int32)
    told[:, IMAGE_TOKENS] = tokens
    told[:, GRID] = grids
    told[:, HASH] = np.frombuffer(b"".join(keys), "<i4").reshape(len(keys), 8)
    return told


_NONE = np.zeros(0, np.float32)
NO_VISUALS = VisualRows(np.zeros((0, 0), np.float16))


@dataclass(frozen=True)
class Submission:
    """One sequence for an engine. `max_tokens` of the sampling is set."""

    request_id: int  # unique for the lifetime of a replica; 63 bits
    tokens: NDArray[np.int32]  # [prompt length], VISUAL_TOKEN where a visual token stands
    visuals: VisualRows  # as many rows as there are VISUAL_TOKEN
    sampling: SamplingParams
    answered: int = 0  # of the tokens, the last ones that an engine made: it died, and the sequence goes on after them
    due_s: float = np.inf  # when its SLO wants the first token, as CLOCK_MONOTONIC of this machine counts


@dataclass(frozen=True)
class EngineLoad:
    """What an engine says of itself with every step."""

    kv_usage: float  # share of the KV cache that running sequences hold, 0 to 1
    prompt_tokens: int = 0  # of the sequences that were submitted since the last report
    reused_tokens: int = 0  # of these, tokens whose KV was in the cache already
    waiting: int = 0  # sequences in a queue of its own
    step_s: float = 0.0  # its last step; 0: it does not tell

    def array(self) -> NDArray[np.float32]:
        """As a report carries it."""
        return np.array([self.kv_usage, self.prompt_tokens, self.reused_tokens, self.waiting, self.step_s], np.float32)


@dataclass(frozen=True)
class StepReport:
    """What one engine step brought, for all sequences that moved. Empty: a heartbeat."""

    request_ids: NDArray[np.uint64]  # [n]
    token_counts: NDArray[np.int32]  # [n] new tokens of each
    tokens: NDArray[np.int32]  # [sum of token_counts]
    finish_reasons: NDArray[np.uint8]  # [n] Finish
    timing: NDArray[np.float32]  # [2n] queue and prefill in ms, with a sequence's first token; else 0
    engine: NDArray[np.float32] = field(default_factory=lambda: _NONE)  # [5] see EngineLoad; [0] when it says nothing
    error: str = ""  # why sequences of this report ended with Finish.ERROR

    @property
    def load(self) -> EngineLoad | None:
        """The engine's figures; None in a heartbeat."""
        if not len(self.engine):
            return None
        usage, prompt, reused, waiting, step_s = self.engine.tolist()
        return EngineLoad(usage, int(prompt), int(reused), int(waiting), step_s)


NO_NEWS = StepReport(np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8), _NONE)


def failure_report(request_ids: Sequence[int], reason: str) -> StepReport:
    """All these sequences ended without an answer."""
    count = len(request_ids)
    return StepReport(
        np.array(request_ids, np.uint64),
        np.zeros(count, np.int32),
        np.zeros(0, np.int32),
        np.full(count, Finish.ERROR, np.uint8),
        np.zeros(2 * count, np.float32),
        EngineLoad(kv_usage=0.0).array(),
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
    """Several submissions of one router as the input tensors of one call."""
    tensors: dict[str, NDArray[Any]] = {
        "request_ids": np.array([s.request_id for s in submissions], np.uint64),
        "tokens": np.concatenate([s.tokens for s in submissions]),
        "token_counts": np.array([len(s.tokens) for s in submissions], np.int32),
        "sampling": np.array([s.sampling.model_dump_json().encode() for s in submissions], np.object_),
    }
    if any(s.due_s < np.inf for s in submissions):
        tensors["due_s"] = np.array([s.due_s for s in submissions])
    if any(s.answered for s in submissions):
        tensors["answered"] = np.array([s.answered for s in submissions], np.int32)
    copied = [s.visuals.copied for s in submissions if len(s.visuals.copied)]
    if copied:
        tensors["visual_tokens"] = np.concatenate(copied)
    pools = [s.visuals.pool for s in submissions if len(s.visuals.pages)]
    if pools:
        tensors["pages"] = np.concatenate([s.visuals.pages for s in submissions])
        tensors["page_counts"] = np.array([len(s.visuals.pages) for s in submissions], np.int32)
        tensors["pool"] = np.array([pools[0].encode()], np.object_)
    if any(len(s.visuals.images) for s in submissions):
        tensors["images"] = np.concatenate([s.visuals.images for s in submissions])
        tensors["image_counts"] = np.array([len(s.visuals.images) for s in submissions], np.int32)
    return tensors


def submissions_from_tensors(
    tensors: Mapping[str, NDArray[Any]], sampling: Sequence[str], pool: str = ""
) -> list[Submission]:
    """The submissions of one call (ServingError).

    `sampling` holds each one's parameters as JSON, `pool` the address of the pool that the pages are in.
    """
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
    visuals = _visuals(tensors, prompts, pool)
    answered = tensors.get("answered", np.zeros_like(counts))
    if len(answered) != len(counts) or (answered < 0).any() or (answered >= counts).any():
        raise invalid("answered", "must have one element a sequence, from 0 to less than its tokens")
    due_s = tensors.get("due_s", np.full(len(counts), np.inf))
    if len(due_s) != len(counts) or np.isnan(due_s).any():
        raise invalid("due_s", "must have one number a sequence")
    return [
        Submission(int(request_id), prompt, rows, parse_sampling(text), int(made), float(due))
        for request_id, prompt, rows, text, made, due in zip(
            tensors["request_ids"], prompts, visuals, sampling, answered, due_s, strict=True
        )
    ]


def _visuals(tensors: Mapping[str, NDArray[Any]], prompts: Sequence[NDArray[np.int32]], pool: str) -> list[VisualRows]:
    """Each sequence's visual tokens; those of one that has pages are all in them."""
    copied = tensors.get("visual_tokens", NO_VISUALS.copied)
    pages = tensors.get("pages", NO_PAGES)
    page_counts = tensors.get("page_counts", np.zeros(len(prompts), np.int32))
    if len(page_counts) != len(prompts) or (page_counts < 0).any() or page_counts.sum() != len(pages):
        raise invalid("page_counts", f"must have one element a sequence, and add up to the {len(pages)} rows of pages")
    if pages.shape[1:] != NO_PAGES.shape[1:]:
        raise invalid("pages", "rows must have 3 elements: page, generation, rows")
    counts = [
        0 if paged else int(np.count_nonzero(prompt == VISUAL_TOKEN))
        for prompt, paged in zip(prompts, page_counts, strict=True)
    ]
    if sum(counts) != len(copied):
        raise invalid("visual_tokens", f"{len(copied)} rows for {sum(counts)} places in tokens")
    rows = np.split(copied, np.cumsum(counts)[:-1])
    lists = np.split(pages, np.cumsum(page_counts)[:-1])
    images = _images(tensors, len(prompts))
    return [VisualRows(own, listed, pool, told) for own, listed, told in zip(rows, lists, images, strict=True)]


def _images(tensors: Mapping[str, NDArray[Any]], count: int) -> list[NDArray[np.int32]]:
    images = tensors.get("images", NO_IMAGES)
    counts = tensors.get("image_counts", np.zeros(count, np.int32))
    if len(counts) != count or (counts < 0).any() or counts.sum() != len(images):
        raise invalid("image_counts", f"must have one element a sequence, and add up to the {len(images)} of images")
    if images.shape[1:] != NO_IMAGES.shape[1:]:
        raise invalid("images", "rows must have 11 elements: visual tokens, rows, columns, and a hash of 8")
    return np.split(images, np.cumsum(counts)[:-1])
