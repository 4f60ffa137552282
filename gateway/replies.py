"""What clients get, in OpenAI's shapes. `timing` and `ttft_ms` are additions that OpenAI's clients ignore."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from client.types import Answer

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_PLACE = "\0"


@dataclass(frozen=True)
class Shape:
    """How one answer is written: as chat or completion, with what identifies it."""

    kind: Literal["chat", "completion"]
    model: str
    wants_usage: bool
    number: str  # the request's, which is in the log
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        if self.kind == "chat":
            choice: dict[str, Any] = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        else:
            choice = {"text": answer.text}
        choices = [{"index": 0, **choice, "logprobs": None, "finish_reason": answer.finish_reason}]
        return self._head("") | {"choices": choices, **_figures(answer)}

    def prepare(self) -> None:
        """Do what can be done before there is an answer."""
        _ = self.opening, self._around_a_piece

    @cached_property
    def opening(self) -> bytes:
        """The first event of a stream: a chat says who speaks."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}) if self.kind == "chat" else b""

    def piece(self, text: str) -> bytes:
        """The event of a piece of text."""
        before, after = self._around_a_piece
        return before + _encode(text).encode() + after

    def end(self, answer: Answer) -> bytes:
        """The last events of a stream: why it ended, what it took, and that it is complete."""
        last = self._chunk({"delta": {}} if self.kind == "chat" else {"text": ""}, answer.finish_reason)
        usage = event(self._head(".chunk") | {"choices": [], **_figures(answer)}) if self.wants_usage else b""
        return last + usage + DONE

    @cached_property
    def _around_a_piece(self) -> tuple[bytes, bytes]:
        """All but the text is the same in every event, and is encoded once: 33 us an event become 2."""
        content = {"delta": {"content": _PLACE}} if self.kind == "chat" else {"text": _PLACE}
        before, _, after = self._chunk(content).partition(_encode(_PLACE).encode())
        return before, after

    def _chunk(self, content: dict[str, Any], finish_reason: str | None = None) -> bytes:
        before, after = self._around_a_choice
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return before + _encode(choice).encode() + after

    @cached_property
    def _around_a_choice(self) -> tuple[bytes, bytes]:
        """The same in every event with a choice."""
        empty = event(self._head(".chunk") | {"choices": []} | ({"usage": None} if self.wants_usage else {}))
        before, bracket, after = empty.rpartition(b"]")
        return before, bracket + after

    def _head(self, suffix: str) -> dict[str, Any]:
        name, prefix = ("chat.completion" + suffix, "chatcmpl") if self.kind == "chat" else ("text_completion", "cmpl")
        return {"id": f"{prefix}-{self.number}", "object": name, "created": self.created, "model": self.model}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data).encode() + b"\n\n"


def _figures(answer: Answer) -> dict[str, Any]:
    prompt, answered = answer.usage.num_input_tokens or 0, answer.usage.num_output_tokens or 0
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"image_tokens": answer.usage.num_visual_tokens or 0},
    }
    return {"usage": usage, "timing": vars(answer.timing)}
