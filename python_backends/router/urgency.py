"""How urgent a request is: Triton's request parameters priority_class, ttft_slo_ms and deadline_ms."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from python_backends.errors import invalid
from python_backends.validation import explain

_MAX_CHARACTERS = 65_536  # of the JSON text: what Triton and its clients add is short

# what a class does to the TTFT SLO of its request, when the request names none of its own
SLO_FACTORS = {"interactive": 0.5, "standard": 1.0, "batch": 10.0}


class Urgency(BaseModel):
    """Other parameters are none of our business: Triton and its clients add some."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    priority_class: Literal["interactive", "standard", "batch"] = "standard"
    ttft_slo_ms: float | None = Field(None, gt=0)
    deadline_ms: float | None = Field(None, gt=0)  # the whole answer, from the request's arrival

    def ttft_slo_s(self, class_slo_ms: float) -> float:
        """The request's own SLO, else that of its class."""
        own = self.ttft_slo_ms
        return (own if own is not None else class_slo_ms * SLO_FACTORS[self.priority_class]) / 1e3


def parse_urgency(parameters: str) -> Urgency:
    """Read `request.parameters()`, a JSON object (ServingError, INVALID_ARG)."""
    if len(parameters) > _MAX_CHARACTERS:
        raise invalid("parameters", f"{len(parameters):,} characters are over the limit of {_MAX_CHARACTERS:,}")
    try:
        return Urgency.model_validate(json.loads(parameters or "{}"))
    except ValidationError as error:
        raise invalid("parameters", explain(error, Urgency)) from None
