"""Sampling parameters of a request, under vLLM's names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from python_backends.errors import invalid
from python_backends.validation import explain

MIN_TEMPERATURE = 0.01  # below it logits overflow
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256  # characters: what must be held back from a stream stays small

MAX_BYTES = 65_536  # of the JSON text, which is not read when it is longer

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class SamplingParams(BaseModel):
    """How to choose tokens and when to stop. Unknown keys are refused; the default is greedy."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_tokens: int | None = Field(None, ge=1)  # None: the deployment's default_max_tokens
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0, le=2)  # 0: greedy; else at least MIN_TEMPERATURE
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=1 << 31)  # 0 and -1: all tokens
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stop: tuple[StopString, ...] = Field((), max_length=MAX_STOP_STRINGS)
    ignore_eos: bool = False
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)

    @field_validator("temperature")
    @classmethod
    def _zero_or_enough(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 (greedy), or from {MIN_TEMPERATURE} to 2")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def parse_sampling(text: str) -> SamplingParams:
    """Read the `sampling_parameters` tensor (ServingError, INVALID_ARG)."""
    try:
        params = SamplingParams.model_validate_json(text or "{}")
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise invalid("sampling_parameters", f"not JSON: {error.errors()[0]['ctx']['error']}") from None
        raise invalid("sampling_parameters", explain(error, SamplingParams)) from None
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise invalid(
            "sampling_parameters", f"min_tokens = {params.min_tokens} is over max_tokens = {params.max_tokens}"
        )
    return params
