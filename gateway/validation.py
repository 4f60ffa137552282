"""What pydantic finds wrong in a body, as one of OpenAI's errors. Texts and pictures are not quoted."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gateway.errors import ApiError, bad_request

_UNION_MEMBERS = ("str", "list[", "text", "image_url", "function-")  # names that pydantic puts into a path
_LARGEST_SHOWN = 1e40
_MAX_MESSAGE = 300  # some of pydantic's quote a value


def refusal(error: ValidationError) -> ApiError:
    """The first problem of a body; where a string or parts may stand, the one found deepest, else the parts'."""
    problems = error.errors(include_url=False)
    rivals = (p for p in problems if p["loc"][:3] == problems[0]["loc"][:3])
    problem = max(rivals, key=lambda p: (len(p["loc"]), p["type"] != "string_type"))
    if problem["type"] == "json_invalid":
        return bad_request("body", f"body: not JSON: {problem['ctx']['error']}", "invalid_json")
    field = _path(problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")[:_MAX_MESSAGE]
    code = "missing_required_parameter" if problem["type"] == "missing" else "invalid_value"
    return bad_request(field or "body", f"{field or 'body'}{_value(problem)}: {message[0].lower()}{message[1:]}", code)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for i, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (i > 0 and isinstance(part, str) and _is_union_member(location, i)):
            path += f".{part}" if path else part
    return path


def _is_union_member(location: tuple[int | str, ...], i: int) -> bool:
    part, before = str(location[i]), location[i - 1]
    if before == "content":
        return part.startswith(_UNION_MEMBERS)
    return isinstance(before, int) and part in ("text", "image_url") and location[i - 2 : i - 1] != ("messages",)


def _value(problem: Any) -> str:
    value = problem["input"]
    return f" = {value}" if isinstance(value, (int, float)) and abs(value) < _LARGEST_SHOWN else ""
