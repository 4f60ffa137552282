"""What the scheduler knows of a request, and what it may decide."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from python_backends.errors import ServingError


class Modality(str, Enum):
    """Request classes; each has its own queue limit, weight and SLO."""

    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"

    __hash__ = str.__hash__  # Enum's own is a call into Python for every look-up by class


@dataclass(frozen=True, slots=True)
class Job:
    """One request. Times are seconds on any clock, as long as it is one."""

    job_id: int
    modality: Modality
    item_tokens: tuple[int, ...]  # visual tokens of each image, known from its size before it is decoded
    prompt_tokens: int  # of the LLM's sequence: text, and visual tokens where these stand in it (`Checkpoint.fusion`)
    answer_tokens: int  # at most
    arrived_s: float
    ttft_slo_s: float
    deadline_s: float | None = None  # absolute

    @property
    def visual_tokens(self) -> int:
        """Visual tokens of all items."""
        return sum(self.item_tokens)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of the LLM's sequence when it has its longest answer."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode item `item` of the job on encoder endpoint `endpoint`."""

    job_id: int
    item: int
    endpoint: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Hand the job to LLM replica `replica`."""

    job_id: int
    replica: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse the job with this error."""

    job_id: int
    error: ServingError


Action = Encode | Submit | Reject
