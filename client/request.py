"""One request and its answer in the terms of the model `vlm`, shared by the gRPC and the HTTP client."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.types import Answer, ImageInput, StageTiming, Usage, VlmError

if TYPE_CHECKING:
    from PIL.Image import Image

_STATUSES = {  # Triton's name of a status: gRPC's
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "NOT_FOUND": "NOT_FOUND",
    "INTERNAL": "INTERNAL",
}
_STATUS_TAG = re.compile(rf"\[({'|'.join(_STATUSES)})\] ")
_AWAY = ("has no available versions", "is not healthy")  # Triton's words, where waiting helps
MODEL = "vlm"
_LONGEST_S = 1_000_000  # of a timeout: what clocks and locks take everywhere
# PIL modes that PNG has not, and what holds their colours.
_PNG_MODE = {"CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
OPTIONAL_OUTPUTS = ("finish_reason", "num_input_tokens", "num_visual_tokens", "num_output_tokens", "timing")


def new_request_id() -> str:
    """One that nobody guesses."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class VlmRequest:
    """A request, ready to be put on the wire; `parameters` are Triton request parameters."""

    stream: bool
    text: str | None = None
    messages: str | None = None
    images: list[bytes] = field(default_factory=list)
    sampling: str | None = None
    parameters: Mapping[str, str | int] = field(default_factory=dict)
    timeout_s: float | None = None
    apply_chat_template: bool = True
    exclude_input_in_output: bool = True
    # By which it can be stopped: not to be guessed.
    request_id: str = field(default_factory=new_request_id, compare=False)

    @property
    def image_bytes(self) -> int:
        """Of all images."""
        return sum(len(image) for image in self.images)

    def switches(self) -> dict[str, bool]:
        """The BOOL inputs."""
        named = {
            "apply_chat_template": self.apply_chat_template,
            "exclude_input_in_output": self.exclude_input_in_output,
        }
        changed = {name: on for name, on in named.items() if not on}  # true is the server's default
        return {"stream": self.stream} | changed | {f"return_{name}": True for name in OPTIONAL_OUTPUTS}

    def strings(self) -> dict[str, str]:
        """The BYTES inputs of one element that hold text."""
        named = {"text_input": self.text, "messages": self.messages, "sampling_parameters": self.sampling}
        return {name: value for name, value in named.items() if value is not None}

    def json_body(self) -> dict[str, Any]:
        """The body of HTTP `generate`: images as base64 strings."""
        images = [base64.b64encode(image).decode() for image in self.images]
        return self.strings() | self.switches() | ({"image": images} if images else {}) | dict(self.parameters)


def make_request(
    text: str | None,
    images: Sequence[ImageInput],
    *,
    stream: bool,
    messages: Sequence[Mapping[str, Any]] | None = None,
    timeout_s: float | None = None,
    priority_class: str | None = None,
    ttft_slo_ms: int | None = None,
    deadline_ms: int | None = None,
    **sampling: Any,
) -> VlmRequest:
    """Gather a call's arguments into a request.

    Raises:
        VlmError: (INVALID_ARGUMENT) neither or both of text and messages, an image that can't be read, a timeout that
            is none, or a sampling parameter that is no JSON.
    """
    if (text is None) == (messages is None):
        raise VlmError("INVALID_ARGUMENT", "text, messages: give exactly one of the two")
    if isinstance(images, (str, bytes)) or hasattr(images, "save"):
        raise VlmError("INVALID_ARGUMENT", f"images: expected a list of images, got one {type(images).__name__}")
    if timeout_s is not None and not 0 < timeout_s <= _LONGEST_S:
        raise VlmError(
            "INVALID_ARGUMENT", f"timeout_s: expected seconds above 0, {_LONGEST_S:,} at most; got {timeout_s}"
        )
    asked = {"priority_class": priority_class, "ttft_slo_ms": ttft_slo_ms, "deadline_ms": deadline_ms}
    return VlmRequest(
        stream=stream,
        text=text,
        messages=None if messages is None else _json("messages", list(messages)),
        images=[image_bytes(image) for image in images],
        sampling=_json("sampling parameters", sampling) if sampling else None,
        parameters={name: value for name, value in asked.items() if value is not None},
        timeout_s=timeout_s,
    )


def image_bytes(image: ImageInput) -> bytes:
    """The encoded file of an image given as a path, a data: URI, encoded bytes, or a PIL image (sent as PNG).

    Raises:
        VlmError: (INVALID_ARGUMENT) the file can't be read, or the object is none of these.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str) and image.startswith("data:"):
        return image.encode()
    if isinstance(image, (str, os.PathLike)):
        try:
            with open(image, "rb") as file:
                return file.read()
        except OSError as error:
            reason = error.strerror or error
            raise VlmError("INVALID_ARGUMENT", f"image {os.fspath(image)}: {reason}") from error
    if hasattr(image, "save"):
        return _png(image)
    raise VlmError("INVALID_ARGUMENT", f"image: expected a path, bytes or a PIL image, got {type(image).__name__}")


def _png(image: Image) -> bytes:
    """A PIL image as PNG, with its EXIF data: a photo's orientation stands there."""
    buffer = io.BytesIO()
    known = _PNG_MODE.get(image.mode)
    try:
        (image.convert(known) if known else image).save(buffer, format="PNG", exif=image.getexif())
    except OSError as error:  # modes without a meaning as colours, and files that Pillow reads only now
        raise VlmError("INVALID_ARGUMENT", f"image of mode {image.mode}: {error}") from error
    return buffer.getvalue()


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise VlmError("INVALID_ARGUMENT", f"{name}: {error}") from error


def error_of(text: str, code: str = "UNKNOWN") -> VlmError:
    """An error that Triton sent as text. The product's begin with their status, for Triton's streams and HTTP lose it.

    `code` is what Triton says of its own errors. A model has no versions while its server starts or drains; a stub
    that is not healthy has died, and will be replaced.
    """
    tag = _STATUS_TAG.search(text)
    if tag is not None:
        return VlmError(_STATUSES[tag[1]], text[tag.end() :])
    return VlmError("UNAVAILABLE" if any(sign in text for sign in _AWAY) else code, text)


class AnswerBuilder:
    """Puts the responses of one request together."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._last: dict[str, Any] = {}
        self._answer: Answer | None = None  # as of now, once somebody has asked

    def add(self, outputs: Mapping[str, Any]) -> str:
        """Take one response (output name to its one value) and return its piece of text."""
        piece = str(outputs.get("text_output", ""))
        self._pieces.append(piece)
        self._answer = None
        if len(outputs) > 1:  # most bring text only
            self._last.update({name: outputs[name] for name in OPTIONAL_OUTPUTS if outputs.get(name) not in (None, "")})
        return piece

    def answer(self) -> Answer:
        """What has come so far."""
        if self._answer is None:
            self._answer = self._put_together()
        return self._answer

    def _put_together(self) -> Answer:
        stages = json.loads(self._last.get("timing", "{}"))
        known = StageTiming.__dataclass_fields__
        return Answer(
            text="".join(self._pieces),
            finish_reason=self._last.get("finish_reason"),
            usage=Usage(
                self._last.get("num_input_tokens"),
                self._last.get("num_output_tokens"),
                self._last.get("num_visual_tokens"),
            ),
            timing=StageTiming(**{name: ms for name, ms in stages.items() if name in known}),
        )
