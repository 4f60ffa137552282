"""What clients send, under OpenAI's names; docs/openai-api.md has the same table in words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.errors import bad_request
from python_backends.sampling import MAX_STOP_LENGTH, MAX_STOP_STRINGS

# Fields that would change the answer and that the stack doesn't have, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "logit_bias": ({},),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "min_p": (0,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),  # 0 asks for those of the prompt's own tokens
    "use_beam_search": (False,),
}

_MAX_INT = (1 << 31) - 1  # what the engine counts with
_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
# Of a list, the first wrong item is told: a body full of them would become a gigabyte of errors.
_StopStrings = Annotated[list[_StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
_MAX_MESSAGES = 4096
_MAX_PARTS = 1024


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class TextPart(_Part):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(_Part):
    """Where a picture is: a data: URI, or a URL of an allowed host. `detail` is accepted, and changes nothing."""

    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(_Part):
    """A picture of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(_Part):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1, max_length=_MAX_PARTS, fail_fast=True)]


class StreamOptions(_Part):
    """What a stream brings beside text."""

    include_usage: bool | None = None


def _same(value: object, other: object) -> bool:
    """Equal, also as JSON: to /v1/completions `"logprobs": 0` is no false, it asks for them."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


class GenerationRequest(BaseModel):
    """What both kinds of request share. Unknown fields are kept, to be looked at by `check_supported`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=_MAX_INT)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stop: Annotated[_StopStrings | None, BeforeValidator(_as_list)] = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    # not OpenAI's: the model's own, under its names
    top_k: int | None = Field(None, ge=-1, le=_MAX_INT)
    min_tokens: int | None = Field(None, ge=0, le=_MAX_INT)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    ignore_eos: bool | None = None
    priority_class: Literal["interactive", "standard", "batch"] | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    ttft_slo_ms: int | None = Field(None, ge=1, le=_MAX_INT)
    deadline_ms: int | None = Field(None, ge=1, le=_MAX_INT)

    def check_supported(self) -> None:
        """Refuse what would change the answer and can't be done (ApiError, 400, naming the field)."""
        for name, value in (self.model_extra or {}).items():
            harmless = _UNSUPPORTED.get(name)
            if harmless is not None and value is not None and not any(_same(value, other) for other in harmless):
                raise bad_request(name, f"{name}: this server does not support it", "unsupported_parameter")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: int | None = Field(None, ge=1, le=_MAX_INT)  # OpenAI's newer name; it holds


def _one_prompt(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: text goes on, no chat template."""

    prompt: Annotated[str, Field(min_length=1), BeforeValidator(_one_prompt)]
    echo: bool | None = None
