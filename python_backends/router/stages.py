"""The stages as the router sees them; `triton_stages` reaches them by BLS, tests put their own in the place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from python_backends.embeddings.target import PageTarget
from python_backends.engines.protocol import StepReport, Submission


@dataclass(frozen=True)
class Embedding:
    """One image's visual tokens, and what they cost."""

    visual_tokens: NDArray[np.float16]  # [tokens, hidden]; none when they are where the encoder was told to put them
    decode_ms: float  # in the worker of image_decode
    encode_ms: float  # in the worker of vision_encoder, for the batch it was in
    ready_s: float  # when the router had it, monotonic seconds


class Stages(Protocol):
    """Blocking calls, made from threads. Every one raises ServingError."""

    def embed(self, image: bytes, alone: bool, target: PageTarget | None = None) -> Embedding:
        """Decode and encode one image, which is the only one of its request or is not.

        `target`: pages that the encoder may put its visual tokens into, if it can.
        """

    def attach(self, replica: int) -> Iterator[StepReport]:
        """Open the channel of a replica and follow its steps; ends when the replica ends it."""

    def submit(self, replica: int, submissions: Sequence[Submission]) -> dict[int, str]:
        """Hand sequences to a replica; a tagged error for each request id that its engine refuses."""

    def cancel(self, replica: int, request_ids: Sequence[int]) -> None:
        """End sequences in a replica."""
