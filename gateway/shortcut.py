"""A short way to the routes that clients wait for.

These routes read and check their requests themselves. What FastAPI and Starlette put between a server and a function
would come on top of every time to first token; the other routes, and the OpenAPI document, are FastAPI's.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.interruption import WhileConnected
from gateway.record import refused


class Shortcut:
    """ASGI middleware: requests to these POST routes go to their functions, which end when the client goes away."""

    def __init__(self, app: ASGIApp, routes: Sequence[APIRoute]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ClientGone)."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive)
        with WhileConnected(scope["state"]["connection"]):
            try:
                response = await route.endpoint(request)
            except ApiError as error:
                response = refused(request, error)
            await response(scope, receive, send)
