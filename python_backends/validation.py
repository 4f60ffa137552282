"""One sentence for each thing that pydantic finds wrong, with the key, the value and what to write instead."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_MOST = 8  # problems that are told; a stranger may have sent thousands


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The problems of `error`, which came from validating `model`, as one line."""
    problems = error.errors()
    sentences = [_explain(problem, model) for problem in problems[:_MOST]]
    return "; ".join(sentences + ([f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else []))


def _explain(problem: Any, model: type[BaseModel]) -> str:
    where = ".".join(_cut(str(part)) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _keys_at(problem["loc"][:-1], model)
        nearest = difflib.get_close_matches(_cut(str(problem["loc"][-1])), known, n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(known)}"
        return f"unknown key '{where}' ({hint})"
    if problem["type"] == "missing":
        return f"key '{where}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return f"{message[0].lower()}{message[1:]}, not {_shorten(problem['input'])}"
    return f"key '{where}' = {_shorten(problem['input'])}: {message[0].lower()}{message[1:]}"


def _shorten(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _keys_at(location: tuple[Any, ...], model: type[BaseModel]) -> list[str]:
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        nested = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)
