"""The paths that clients call."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import ValidationError

from gateway.answering import answer
from gateway.aside import aside
from gateway.body import lifted, read_body
from gateway.budget import Lease
from gateway.documents import ANSWERS, ERRORS, body_of
from gateway.errors import ApiError, overloaded
from gateway.gateway import Gateway
from gateway.images import load_images
from gateway.quotas import Slot
from gateway.record import RequestRecord, record_of
from gateway.replies import Shape
from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest
from gateway.translate import from_chat, from_completion, image_sources
from gateway.validation import refusal
from python_backends.lifting import Lifted

router = APIRouter()
generation = APIRouter()  # gateway.shortcut leads to these
_RequestType = TypeVar("_RequestType", bound=GenerationRequest)


def gateway_of(request: Request) -> Gateway:
    """The gateway that got the request."""
    return cast(Gateway, request.app.state.gateway)


def authenticated(request: Request) -> str:
    """The name of the key's holder, before anything else of the request is read (ApiError, 401)."""
    record = record_of(request)
    record.route = request.scope["route"].path
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    given = key.strip() if scheme.lower() == "bearer" else ""
    record.key = gateway_of(request).keys.identify(given or None)
    if record.key is None:
        problem = "the API key is not known" if given else "no API key was given"
        raise ApiError(401, f"{problem}; send it as `Authorization: Bearer KEY`", "invalid_api_key")
    return record.key


@generation.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest), responses=ANSWERS)
async def chat(request: Request) -> Response:
    """Answer a chat, with pictures or without."""
    async with _opened(request) as opened:
        gateway, record = opened.gateway, opened.record
        body, pictures = await opened.read(ChatRequest)
        sources = image_sources(body)
        record.images = len(sources)
        images: list[bytes] = []
        if sources:
            limit = gateway.settings.remote_images
            images = await load_images(sources, pictures, gateway.fetcher, limit, opened.lease)
        asked = from_chat(body, sources, images, gateway.settings.request_timeout_s, record.request_id)
        shape = Shape("chat", body.model, body.wants_usage, record.number)
        return await answer(record, asked, shape, gateway.pool, opened.slot)


@generation.post("/v1/completions", openapi_extra=body_of(CompletionRequest), responses=ANSWERS)
async def completions(request: Request) -> Response:
    """Go on with a text."""
    async with _opened(request) as opened:
        body, _ = await opened.read(CompletionRequest)
        gateway, record = opened.gateway, opened.record
        asked = from_completion(body, gateway.settings.request_timeout_s, record.request_id)
        shape = Shape("completion", body.model, body.wants_usage, record.number)
        return await answer(record, asked, shape, gateway.pool, opened.slot)


@router.get("/v1/models", responses={401: ERRORS[401]})
async def models(request: Request) -> dict[str, Any]:
    """The names under which the model can be asked."""
    authenticated(request)
    names = gateway_of(request).settings.model_names
    return {"object": "list", "data": [_model(name) for name in names]}


@router.get("/v1/models/{model}", responses={401: ERRORS[401], 404: ERRORS[404]})
async def model(request: Request, model: str) -> dict[str, Any]:
    """One of them."""
    authenticated(request)
    _check_model(gateway_of(request), model)
    return _model(model)


@router.get("/health/live")
async def live() -> dict[str, str]:
    """Whether the gateway runs."""
    return {"status": "live"}


@router.get("/health/ready", responses={503: {"description": "Not now: it starts, drains, or no server is ready."}})
async def ready(request: Request) -> JSONResponse:
    """Whether the gateway takes requests: not while it drains, nor before a server has answered one."""
    is_ready = gateway_of(request).ready
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus metrics of the gateway."""
    return Response(gateway_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


@dataclass(frozen=True)
class _Opened:
    """A request that may be read."""

    request: Request
    gateway: Gateway
    record: RequestRecord
    slot: Slot  # its share of the key's quota, which a stream keeps to its end
    lease: Lease  # of memory for what it sent

    async def read(self, kind: type[_RequestType]) -> tuple[_RequestType, Lifted]:
        """Its body, checked, and the pictures in it (ApiError)."""
        settings = self.gateway.settings
        raw = await read_body(self.request, settings, self.lease)

        def parse() -> tuple[_RequestType, Lifted]:
            text = lifted(raw, settings)
            try:
                return kind.model_validate_json(text.text), text
            except ValidationError as error:
                raise refusal(error) from None

        body, pictures = await aside(len(raw), parse)
        body.check_supported()
        _check_model(self.gateway, body.model)
        self.record.stream = bool(body.stream)
        return body, pictures


@contextlib.asynccontextmanager
async def _opened(request: Request) -> AsyncIterator[_Opened]:
    """A request whose key is good, and has something left of its quota (ApiError)."""
    key, gateway = authenticated(request), gateway_of(request)
    if gateway.draining:
        raise overloaded("the gateway is shutting down")
    slot = await gateway.quotas.enter(key)
    try:
        with gateway.budget.lease() as lease:
            yield _Opened(request, gateway, record_of(request), slot, lease)
    except BaseException:
        await slot.close()
        raise


def _check_model(gateway: Gateway, name: str) -> None:
    known = gateway.settings.model_names
    if name not in known:
        message = f"model: {name[:80]!r} is not served here (models: {', '.join(known)})"
        raise ApiError(404, message, "model_not_found", "model")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "triton-vlm"}
