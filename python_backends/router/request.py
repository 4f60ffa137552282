"""What a client asks for: the tensors of the model vlm, parsed and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from python_backends.deployment import Limits
from python_backends.errors import invalid
from python_backends.lifting import Lifted, TooMuchText, lift
from python_backends.router.weight import as_bytes, check_images, only, the_one, weigh
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
    images: list[bytes | memoryview]  # as the client sent them: encoded files, base64 or data: URIs
    sampling: SamplingParams
    stream: bool
    echo_input: bool
    wanted: Wanted


def asks_to_stop(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether it is no request but wants others to end, as TensorRT-LLM's backend has it (ServingError)."""
    if not _flag(arrays, "stop", False):
        return False
    if others := sorted(arrays.keys() - {"stop"}):
        raise invalid("stop", f"true goes alone; {', '.join(others)} came with it")
    return True


def parse_request(arrays: Mapping[str, NDArray[Any]], limits: Limits, image_token: str) -> VlmRequest:
    """Read the input tensors of one request (ServingError, INVALID_ARG, naming the tensor)."""
    weigh(arrays, limits)
    images = [as_bytes("image", item) for item in arrays["image"].reshape(-1)] if "image" in arrays else []
    if ("text_input" in arrays) == ("messages" in arrays):
        raise invalid("text_input", "exactly one of text_input and messages must be given")
    apply_chat_template = _flag(arrays, "apply_chat_template", True)
    if "messages" in arrays:
        messages, images = _parse_messages(the_one(arrays, "messages"), images, limits)
    elif images or apply_chat_template:
        messages = _from_text_input(_text(arrays, "text_input"), len(images), image_token)
    else:  # a text to go on with, whatever it holds
        messages = [{"role": "user", "content": [_text_part(_text(arrays, "text_input"))]}]
    if "messages" in arrays and not apply_chat_template:
        raise invalid("apply_chat_template", "false goes with text_input; messages need the template")
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
    placeholders = text.count(image_token)
    if placeholders == 0:
        return [{"role": "user", "content": [{"type": "image"}] * images + [_text_part(text)]}]
    if placeholders != images:
        raise invalid("text_input", f"{placeholders} placeholders {image_token} for {images} images; they must match")
    pieces = text.split(image_token)
    content: list[dict[str, Any]] = [_text_part(pieces[0])]
    for piece in pieces[1:]:
        content += [{"type": "image"}, _text_part(piece.removeprefix("\n"))]
    return [{"role": "user", "content": [part for part in content if part.get("text") != ""]}]


def _parse_messages(
    text: bytes | memoryview, images: list[bytes | memoryview], limits: Limits
) -> tuple[list[Message], list[bytes | memoryview]]:
    """OpenAI-style messages; gives them with bare image parts, and the images in their order."""
    try:
        lifted = lift(text, int(limits.text_bytes_mb * 1_000_000))
        raw = json.loads(lifted.text.decode())
    except TooMuchText as error:
        raise invalid("messages", f"{error} (limits.text_bytes_mb = {limits.text_bytes_mb:g})") from None
    except UnicodeDecodeError as error:
        raise invalid("messages", f"not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
        raise invalid("messages", f"not JSON: {error}") from None
    if not isinstance(raw, list) or not raw:
        raise invalid("messages", "must be a JSON array with at least one message")
    _check_parts(raw, limits)
    pictures = _Pictures(iter(images), lifted, [])
    messages = [_parse_message(f"messages[{i}]", message, pictures) for i, message in enumerate(raw)]
    left = sum(1 for _ in pictures.tensor)
    if left:
        raise invalid("messages", f"{len(images) - left} image parts for {len(images)} images; they must match")
    return messages, pictures.used


@dataclass(frozen=True)
class _Pictures:
    """Where the pictures of the messages come from, and those that were used, in order."""

    tensor: Iterator[bytes | memoryview]
    lifted: Lifted
    used: list[bytes | memoryview]


def _check_parts(raw: Sequence[Any], limits: Limits) -> None:
    """Refuse more messages, parts or pictures than there may be before any is looked at (ServingError)."""
    limit = limits.context_tokens
    contents = [message.get("content") for message in raw if isinstance(message, dict)]
    parts = sum(len(content) if isinstance(content, list) else 1 for content in contents)
    for name, count in (("parts", parts), ("messages", len(raw))):
        if count > limit:
            raise invalid("messages", f"{count} {name} are over context_tokens = {limit}")
    kinds = [part.get("type") for c in contents if isinstance(c, list) for part in c if isinstance(part, dict)]
    check_images(sum(kind in ("image", "image_url") for kind in kinds), limits)


def _parse_message(where: str, message: Any, pictures: _Pictures) -> Message:
    if not isinstance(message, dict):
        raise invalid(where, "must be an object with role and content")
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(f"{where}.role", f"{repr(role)[:40]} is not one of {', '.join(_ROLES)}")
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
            pictures.used.append(_next_image(here, pictures.tensor))
            parts.append({"type": "image"})
        elif kind == "image_url":
            pictures.used.append(_data_uri(here, part, pictures.lifted))
            parts.append({"type": "image"})
        else:
            raise invalid(here, "must be a part of type text (in valid Unicode), image or image_url")
    return {"role": role, "content": parts}


def _next_image(where: str, images: Iterator[bytes | memoryview]) -> bytes | memoryview:
    image = next(images, None)
    if image is None:
        raise invalid(where, "more image parts than elements in the tensor image")
    return image


def _data_uri(where: str, part: dict[str, Any], lifted: Lifted) -> bytes:
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str) or not _is_unicode(url) or url[:5].lower() != "data:":
        raise invalid(f"{where}.image_url", "must be a data: URI; remote images are not fetched here")
    return lifted.data_uri(url)


def _is_unicode(text: str) -> bool:
    """JSON can name half a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _text(arrays: Mapping[str, NDArray[Any]], name: str, default: str = "") -> str:
    if name not in arrays:
        return default
    try:
        return bytes(the_one(arrays, name)).decode()
    except UnicodeDecodeError as error:
        raise invalid(name, f"not UTF-8: {error}") from None


def _flag(arrays: Mapping[str, NDArray[Any]], name: str, default: bool) -> bool:
    return bool(only(arrays, name)) if name in arrays else default
