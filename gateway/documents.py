"""What the OpenAPI document says beyond what FastAPI finds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

_PROBLEM = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_DESCRIPTIONS = {
    400: "A field is at fault; param names it.",
    401: "No API key, or none that is known.",
    404: "No such model.",
    408: "The body or the answer was not complete in time.",
    413: "Body or image too large.",
    415: "Not JSON, or an image format that is not accepted.",
    422: "An image that can't be decoded or fetched.",
    429: "Too much at a time: of this key, or of all. Retry-After says when to come again.",
    503: "Not now. Retry-After says when to come again.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _PROBLEM}}}
    for status, text in _DESCRIPTIONS.items()
}

_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, server-sent events.",
        "content": {"application/json": {}, "text/event-stream": {"schema": _EVENT}},
    },
    **ERRORS,
}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The request body: read by the routes themselves, after the key and the limits were looked at."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


def complete(document: dict[str, Any], names: Sequence[str]) -> None:
    """Say in an OpenAPI document which models there are, and that /v1 takes a key; FastAPI knows of neither.

    It does know of errors that do not happen: a path's parameters are strings, which any path gives.
    """
    scheme = {"type": "http", "scheme": "bearer", "description": "An API key, where the gateway has any."}
    document["components"] = {"securitySchemes": {"key": scheme}}
    for path, methods in document["paths"].items():
        if not path.startswith("/v1/"):
            continue
        for method, operation in methods.items():
            operation["security"] = [{"key": []}]
            if method == "get":
                operation["responses"].pop("422", None)
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                schema["properties"]["model"] = {"type": "string", "enum": list(names)}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references, which would point into the document's root."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return resolve(definitions[value["$ref"].rsplit("/", 1)[-1]])
            return {key: resolve(item) for key, item in value.items() if key != "discriminator"}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    resolved: dict[str, Any] = resolve(schema)
    return resolved
