"""What is done with a request before it is scheduled: parsed, checked, tokenised, and its pictures looked at.

All of this grows with what was sent. Little is done where it is asked for; more on threads, few at a time, so that the
event loop goes on with other requests. No call holds Python's global lock for longer than some 20 ms: what is parsed at
once is bounded (`lifting`), base64 goes by pieces, tokenizer and hash let the lock go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import invalid
from python_backends.router.encoder import Picture
from python_backends.router.fan_out import FanOut
from python_backends.router.prompt import Prompt, PromptBuilder
from python_backends.router.record import RequestRecord
from python_backends.router.request import VlmRequest, parse_request
from python_backends.router.weight import Weight, weigh
from python_backends.scheduling.jobs import Modality

_LITTLE = Weight(text=16_384, images=262_144)  # done within some 5 ms
_THREADS = 2


@dataclass(frozen=True)
class Prepared:
    """A request that can be scheduled."""

    request: VlmRequest
    prompt: Prompt
    pictures: list[Picture]

    @property
    def modality(self) -> Modality:
        """By what it holds."""
        return Modality.IMAGE if self.pictures else Modality.TEXT


class Preparation:
    """For all requests of the router."""

    def __init__(
        self, limits: Limits, image_token: str, prompts: PromptBuilder, token_bytes: int, fan_out: FanOut
    ) -> None:
        """`token_bytes`: of the longest token."""
        self._limits = limits
        self._image_token = image_token
        self._prompts = prompts
        self._most_bytes = limits.context_tokens * token_bytes
        self._fan_out = fan_out
        self._threads = ThreadPoolExecutor(_THREADS, "preparation")

    async def prepare(self, arrays: Mapping[str, NDArray[Any]], record: RequestRecord) -> Prepared:
        """Prepare a request (ServingError, INVALID_ARG); `record` is filled in."""
        weight = weigh(arrays, self._limits)
        if weight.text <= _LITTLE.text and weight.images <= _LITTLE.images:
            return self._prepare(arrays, record)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, arrays, record)

    def close(self) -> None:
        """No more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, arrays: Mapping[str, NDArray[Any]], record: RequestRecord) -> Prepared:
        request = parse_request(arrays, self._limits, self._image_token)
        record.modality = (Modality.IMAGE if request.images else Modality.TEXT).value
        record.images = len(request.images)
        self._check_length(request)
        prompt = self._prompts.build(request.messages, request.apply_chat_template)
        if not prompt.images and not prompt.text_tokens:
            raise invalid(request.text_field, "is empty, and so is the prompt that it makes")
        record.text_tokens = prompt.text_tokens
        return Prepared(request, prompt, self._fan_out.look_at(request.images))

    def _check_length(self, request: VlmRequest) -> None:
        """Refuse what can't fit the context before time is spent on its tokens (ServingError, INVALID_ARG)."""
        parts = [part for message in request.messages for part in message["content"]]
        size = sum(len(part.get("text", "").encode()) for part in parts)
        if size > self._most_bytes:
            raise invalid(
                request.text_field,
                f"{size} bytes of text are over the {self._most_bytes} that "
                f"context_tokens = {self._limits.context_tokens} can hold",
            )
