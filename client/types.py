"""What a client gets: answers, streams of text, errors."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from PIL.Image import Image

    ImageInput: TypeAlias = str | os.PathLike[str] | bytes | Image
else:  # Pillow is needed only by those who pass its images
    ImageInput = object


_RETRY_HINT = re.compile(r"\bretry after (\d+(?:\.\d+)?) s\b")


class VlmError(Exception):
    """A request that failed: `status` as gRPC names it (INVALID_ARGUMENT, UNAVAILABLE, ...), `message` one sentence.

    `retry_after_s` is when the server expects to take the request, where it said so; statuses have no field for it in
    Triton's protocols, so that it stands in the sentence: "...; retry after 2 s".
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        hint = _RETRY_HINT.search(message)
        self.retry_after_s = float(hint.group(1)) if hint else None


@dataclass(frozen=True)
class Usage:
    """Tokens of a request; None where the server did not say. The visual tokens are a part of the input."""

    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    num_visual_tokens: int | None = None


@dataclass(frozen=True)
class StageTiming:
    """Milliseconds by stage as the server measured them; None where a stage had no part in the request."""

    queue_ms: float | None = None
    decode_ms: float | None = None
    encode_ms: float | None = None
    prefill_ms: float | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    timing: StageTiming = field(default_factory=StageTiming)


class TextStream(Iterator[str]):
    """Pieces of an answer as they come. Closing it before its end stops the request.

    Iterating raises VlmError when the request fails.
    """

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """What has come so far; after the last piece the whole answer with usage and timing."""

    @abstractmethod
    def close(self) -> None:
        """Stop the request; does nothing when it has ended."""

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTextStream(AsyncIterator[str]):
    """As TextStream, for `async for`."""

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """What has come so far; after the last piece the whole answer with usage and timing."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop the request; does nothing when it has ended."""

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
