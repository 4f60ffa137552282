"""The ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gateway import playground, routes
from gateway.documents import complete
from gateway.errors import ApiError
from gateway.gateway import Gateway
from gateway.record import Recorder, record_of, refused
from gateway.settings import GatewaySettings
from gateway.shortcut import Shortcut


def create_app(settings: GatewaySettings) -> FastAPI:
    """The gateway as an application; `app.state.gateway` holds its parts.

    Raises:
        SettingsError: the keys can't be read, or are needed and missing.
    """
    gateway = Gateway(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.connected():
            yield

    app = FastAPI(
        title="triton-vlm gateway",
        description="Vision-language models behind OpenAI's API. Fields: docs/openai-api.md.",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # its pages load scripts from other hosts
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # else it looks for them before every request
    )
    app.state.gateway = gateway
    app.include_router(routes.generation)
    app.include_router(routes.router)
    app.include_router(playground.router)
    app.add_exception_handler(ApiError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_http_error)
    app.add_middleware(Shortcut, routes=[route for route in routes.generation.routes if isinstance(route, APIRoute)])
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # those asked for: OpenAI's client sends x-stainless-*
            expose_headers=["x-request-id", "Retry-After"],
        )
    complete(app.openapi(), settings.model_names)  # the document is made once
    app.add_middleware(Recorder, metrics=gateway.metrics)
    return app


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return refused(request, error)


async def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Paths and methods that there are not."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    headers = error.headers if isinstance(error, HTTPException) else None
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_value")
    problem = ApiError(status, f"{request.method} {request.url.path}: {code.replace('_', ' ')}", code)
    record_of(request).error = code
    return JSONResponse(problem.body(), status, headers=dict(headers or {}))
