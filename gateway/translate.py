"""From an OpenAI request to one of the model `vlm` (its tensors: README, "The model vlm")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client.request import VlmRequest
from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest, ImagePart

_SAMPLING = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "repetition_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
_TIERS = {"priority": "interactive", "flex": "batch"}
_ROLES = {"developer": "system"}
# For the choice between servers a rough count will do: the router has the exact one.
_CHARACTERS_A_TOKEN = 4
_TOKENS_AN_IMAGE = 256
_USUAL_ANSWER = 128


@dataclass(frozen=True)
class ImageSource:
    """A picture of the messages: its URL, and the field that it stands in."""

    field: str
    url: str


@dataclass(frozen=True)
class Asked:
    """A request for the servers, with about how many tokens it is worth."""

    request: VlmRequest
    tokens: int
    timeout_s: float  # for the whole answer, from the request's arrival here
    late: str  # what is said when it passes
    image_fields: Sequence[str]  # where each image stood


def image_sources(body: ChatRequest) -> list[ImageSource]:
    """The pictures of all messages, in order."""
    return [
        ImageSource(f"messages[{i}].content[{j}].image_url", part.image_url.url)
        for i, message in enumerate(body.messages)
        if not isinstance(message.content, str)
        for j, part in enumerate(message.content)
        if isinstance(part, ImagePart)
    ]


def from_chat(
    body: ChatRequest, sources: Sequence[ImageSource], images: list[bytes], timeout_s: float, request_id: str
) -> Asked:
    """A chat; `images` are those of its `sources`, fetched."""
    messages = json.dumps([{"role": _ROLES.get(m.role, m.role), "content": _content(m.content)} for m in body.messages])
    limit = body.max_completion_tokens or body.max_tokens
    request = VlmRequest(messages=messages, images=images, **_common(body, limit, request_id))
    tokens = len(messages) // _CHARACTERS_A_TOKEN + len(images) * _TOKENS_AN_IMAGE + (limit or _USUAL_ANSWER)
    return Asked(request, tokens, *_time(body, timeout_s), [source.field for source in sources])


def from_completion(body: CompletionRequest, timeout_s: float, request_id: str) -> Asked:
    """A text to go on with."""
    request = VlmRequest(
        text=body.prompt,
        apply_chat_template=False,
        exclude_input_in_output=not body.echo,
        **_common(body, body.max_tokens, request_id),
    )
    tokens = len(body.prompt) // _CHARACTERS_A_TOKEN + (body.max_tokens or _USUAL_ANSWER)
    return Asked(request, tokens, *_time(body, timeout_s), ())


def _content(content: str | list[Any]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return [{"type": "image"} if isinstance(p, ImagePart) else {"type": "text", "text": p.text} for p in content]


def _time(body: GenerationRequest, most_s: float) -> tuple[float, str]:
    if body.deadline_ms and body.deadline_ms / 1e3 <= most_s:
        return body.deadline_ms / 1e3, f"deadline_ms: the answer was not complete within {body.deadline_ms} ms"
    return most_s, f"the answer was not complete within request_timeout_s = {most_s:g}"


def _common(body: GenerationRequest, limit: int | None, request_id: str) -> dict[str, Any]:
    sampling = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if limit is not None:
        sampling["max_tokens"] = limit
    if "seed" in sampling:
        sampling["seed"] %= 1 << 63  # OpenAI's may be negative
    return {
        "stream": bool(body.stream),
        "sampling": json.dumps(sampling),
        "parameters": _parameters(body),
        "request_id": request_id,
    }


def _parameters(body: GenerationRequest) -> dict[str, str | int]:
    named: dict[str, str | int | None] = {
        "priority_class": body.priority_class or _TIERS.get(body.service_tier or ""),
        "ttft_slo_ms": body.ttft_slo_ms,
        "deadline_ms": body.deadline_ms,
    }
    return {name: value for name, value in named.items() if value is not None}
