"""Every refusal a client can get, in OpenAI's error shape, and what the stack's errors become."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client.types import VlmError

_RETRY_S = 1  # queues move in less


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error. `param` is the field at fault, `retry_after_s` goes into Retry-After."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        """The JSON object that OpenAI's clients read."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers that belong to it."""
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s is not None else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """400: the request's own fault."""
    return ApiError(400, message, code, param)


def overloaded(message: str, retry_after_s: int = _RETRY_S) -> ApiError:
    """503: not now; the same request may succeed later."""
    return ApiError(503, message, "unavailable", retry_after_s=retry_after_s)


@dataclass(frozen=True)
class _Rule:
    """A status of the stack, with something that its sentence holds, and what it becomes."""

    status: str
    pattern: re.Pattern[str]
    answer: int
    code: str
    retry_after_s: int | None = None


def _rule(status: str, pattern: str, answer: int, code: str, retry_after_s: int | None = None) -> _Rule:
    return _Rule(status, re.compile(pattern), answer, code, retry_after_s)


# The first that fits holds. The router's statuses are few; its sentences name limits by their keys in the deployment
# file, which tell the rest.
_RULES = (
    _rule("INVALID_ARGUMENT", r"limits\.image_(bytes_mb|pixels_mp|side)", 413, "image_too_large"),
    _rule("INVALID_ARGUMENT", r"is not supported \(accepted:", 415, "unsupported_image_format"),
    _rule("INVALID_ARGUMENT", r"context_tokens", 400, "context_length_exceeded"),
    _rule("INVALID_ARGUMENT", r"^image\[\d+\]: ", 422, "invalid_image"),
    _rule("INVALID_ARGUMENT", "", 400, "invalid_value"),
    _rule("UNAVAILABLE", r"deadline_ms", 408, "deadline_exceeded"),
    _rule("UNAVAILABLE", r"queue_limit|memory_watermark|breaker_tokens", 429, "overloaded", _RETRY_S),
    _rule("UNAVAILABLE", "", 503, "unavailable", _RETRY_S),
    _rule("DEADLINE_EXCEEDED", "", 408, "deadline_exceeded"),
    _rule("CANCELLED", "", 503, "cancelled", _RETRY_S),  # by the server: a client that cancels sees no answer
    _rule("NOT_FOUND", "", 503, "unavailable", _RETRY_S),  # the server has no such model (yet)
    _rule("", "", 500, "internal_error"),
)
_IMAGE = re.compile(r"^image\[(\d+)\]: ")
_FIELD = re.compile(r"^(?:sampling_parameters: (?:key ')?)?([a-z_]+)((?:\[\d+\]|\.[a-z_]+)*)")
_FIELDS = {"messages", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop", "deadline_ms"}
_NAMES = {"text_input": "prompt", "image": "messages"}  # what they are called here


def from_stack(error: VlmError, image_fields: Sequence[str] = ()) -> ApiError:
    """An error of the servers as a client's, the router's sentence kept. `image_fields[n]` is where image n stood."""
    rule = next(r for r in _RULES if error.status.startswith(r.status) and r.pattern.search(error.message))
    wait_s = rule.retry_after_s if error.retry_after_s is None else math.ceil(error.retry_after_s)
    retry_after_s = None if rule.retry_after_s is None else wait_s  # where the server gave no time, the rule does
    return ApiError(rule.answer, error.message, rule.code, _field(error.message, image_fields), retry_after_s)


def _field(message: str, image_fields: Sequence[str]) -> str | None:
    image = _IMAGE.match(message)
    if image and int(image[1]) < len(image_fields):
        return image_fields[int(image[1])]
    found = _FIELD.match(message)
    if found is None:
        return None
    name = _NAMES.get(found[1], found[1])
    return name + found[2] if name in _FIELDS | {"prompt"} else None
