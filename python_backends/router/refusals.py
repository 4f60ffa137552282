"""Why a request was refused, as a label: the setting or the field that the error names.

Errors quote what clients sent, so only names from a closed list become labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel

from python_backends.deployment import Deployment
from python_backends.errors import ServingError

_FIELDS = frozenset(
    {"text_input", "messages", "image", "stream", "sampling_parameters", "parameters", "deadline_ms", "draining"}
)
_NAME = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


def _settings(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key of the deployment file, as errors write it: with its path, or, in `limits`, alone."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _settings(kind, f"{path}{name}.")
        else:
            yield name if path == "limits." else f"{path}{name}"


_SETTINGS = frozenset(_settings(Deployment)) | {"max_tokens", "min_tokens"}


def refusal_reason(error: ServingError) -> str:
    """The setting that an error names, else the field it begins with, else its status."""
    names: list[str] = _NAME.findall(error.message)
    setting = next((name for name in names if name in _SETTINGS), None)
    if setting is not None:
        return setting
    return names[0] if names and names[0] in _FIELDS else error.status.value
