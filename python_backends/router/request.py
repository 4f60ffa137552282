"""What a client asks for: the tensors of the model vlm, parsed and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import invalid
from python_backends.sampling import SamplingParams, parse_sampling

Message = dict[
    str, Any
]  # {"role": str, "content": [part, ...]}; a part is {"type": "text", "text"} or {"type": "image"}

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Wanted:
    """Which optional outputs the client asked for."""

    finish_reason: bool
    num_input_tokens: bool
    num_visual_tokens: bool
    num_output_tokens: bool
    timing: bool


@dataclass(frozen=True)
class VlmRequest:
    """One parsed request. The n-th image part of the messages, counted over all of them, is `images[n]`."""

    messages: list[Message]
    text_field: str  # the tensor that the text came in
    apply_chat_template: bool  # False: `messages` is one of text and images, which are the prompt as they stand
    images: list[bytes]  # as the client sent them: encoded files, base64 or data: URIs
    sampling: SamplingParams
    stream: bool
    echo_input: bool
    wanted: Wanted


def parse_request(arrays: Mapping[str, NDArray[Any]], limits: Limits, image_token: str) -> VlmRequest:
    """Read the input tensors of one request (ServingError, INVALID_ARG, naming the tensor)."""
    images = [_as_bytes("image", item) for item in arrays["image"].reshape(-1)] if "image" in arrays else []
    if ("text_input" in arrays) == ("messages" in arrays):
        raise invalid("text_input", "exactly one of text_input and messages must be given")
    if "messages" in arrays:
        messages, images = _parse_messages(_text(arrays, "messages"), images)
    else:
        messages = _from_text_input(_text(arrays, "text_input"), len(images), image_token)
    apply_chat_template = _flag(arrays, "apply_chat_template", True)
    if "messages" in arrays and not apply_chat_template:
        raise invalid("apply_chat_template", "false goes with text_input; messages need the template")
    if len(images) > limits.images_per_request:
        raise invalid(
            "image", f"{len(images)} images are over the limit images_per_request = {limits.images_per_request}"
        )
    return VlmRequest(
        messages=messages,
        text_field="messages" if "messages" in arrays else "text_input",
        apply_chat_template=apply_chat_template,
        images=images,
        sampling=parse_sampling(_text(arrays, "sampling_parameters", "{}")),
        stream=_flag(arrays, "stream", False),
        echo_input=not _flag(arrays, "exclude_input_in_output", True),
        wanted=Wanted(
            **{name: _flag(arrays, f"return_{name}", False) for name in Wanted.__dataclass_fields__},
        ),
    )


def _from_text_input(text: str, images: int, image_token: str) -> list[Message]:
    """A user message; without placeholders the images stand before the text."""
    pieces = text.split(image_token)
    placeholders = len(pieces) - 1
    if placeholders == 0:
        return [{"role": "user", "content": [{"type": "image"}] * images + [_text_part(text)]}]
    if placeholders != images:
        raise invalid("text_input", f"{placeholders} placeholders {image_token} for {images} images; they must match")
    content: list[dict[str, Any]] = [_text_part(pieces[0])]
    for piece in pieces[1:]:
        content += [{"type": "image"}, _text_part(piece.removeprefix("\n"))]
    return [{"role": "user", "content": [part for part in content if part.get("text") != ""]}]


def _parse_messages(text: str, images: list[bytes]) -> tuple[list[Message], list[bytes]]:
    """OpenAI-style messages; gives them with bare image parts, and the images in their order."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
        raise invalid("messages", f"not JSON: {error}") from None
    if not isinstance(raw, list) or not raw:
        raise invalid("messages", "must be a JSON array with at least one message")
    remaining = iter(images)
    used: list[bytes] = []
    messages = [_parse_message(f"messages[{i}]", message, remaining, used) for i, message in enumerate(raw)]
    left = sum(1 for _ in remaining)
    if left:
        raise invalid("messages", f"{len(images) - left} image parts for {len(images)} images; they must match")
    return messages, used


def _parse_message(where: str, message: Any, images: Any, used: list[bytes]) -> Message:
    if not isinstance(message, dict):
        raise invalid(where, "must be an object with role and content")
    if message.get("role") not in _ROLES:
        raise invalid(f"{where}.role", f"{message.get('role')!r} is not one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, str):
        content = [_text_part(content)]
    if not isinstance(content, list):
        raise invalid(f"{where}.content", "must be a string or an array of parts")
    parts = []
    for i, part in enumerate(content):
        here = f"{where}.content[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str) and _is_unicode(part["text"]):
            parts.append(_text_part(part["text"]))
        elif kind == "image":
            used.append(_next_image(here, images))
            parts.append({"type": "image"})
        elif kind == "image_url":
            used.append(_data_uri(here, part))
            parts.append({"type": "image"})
        else:
            raise invalid(here, "must be a part of type text (in valid Unicode), image or image_url")
    return {"role": message["role"], "content": parts}


def _next_image(where: str, images: Any) -> bytes:
    image = next(images, None)
    if image is None:
        raise invalid(where, "more image parts than elements in the tensor image")
    return bytes(image)


def _data_uri(where: str, part: dict[str, Any]) -> bytes:
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str) or not _is_unicode(url) or not url.lower().startswith("data:"):
        raise invalid(f"{where}.image_url", "must be a data: URI; remote images are not fetched here")
    return url.encode()


def _is_unicode(text: str) -> bool:
    """JSON can name half a surrogate pair, which is no text."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _as_bytes(name: str, item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise invalid(name, f"elements must be BYTES, not {type(item).__name__}")


def _text(arrays: Mapping[str, NDArray[Any]], name: str, default: str = "") -> str:
    if name not in arrays:
        return default
    items = arrays[name].reshape(-1)
    if len(items) != 1:
        raise invalid(name, f"holds {len(items)} elements; it must hold 1")
    try:
        return _as_bytes(name, items[0]).decode()
    except UnicodeDecodeError as error:
        raise invalid(name, f"not UTF-8: {error}") from None


def _flag(arrays: Mapping[str, NDArray[Any]], name: str, default: bool) -> bool:
    if name not in arrays:
        return default
    items = arrays[name].reshape(-1)
    if len(items) != 1:
        raise invalid(name, f"holds {len(items)} elements; it must hold 1")
    return bool(items[0])
