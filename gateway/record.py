"""What stays of a request: one line in the log and its share of the metrics; no key and no content in either."""

from __future__ import annotations

import json
import logging
import time
import traceback
import uuid
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.interruption import ClientGone
from gateway.metrics import GatewayMetrics

log = logging.getLogger("gateway")

CLIENT_GONE = 499  # nginx's number for it; only ever seen in logs and metrics
_QUIET = ("/health/", "/metrics")  # asked every few seconds


@dataclass
class RequestRecord:
    """Filled in as the request goes on."""

    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    route: str = "other"
    key: str | None = None  # its name
    stream: bool = False
    images: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    status: int = 0
    error: str | None = None  # the code of an error, not its text, which may quote the request
    first_piece_s: float | None = None
    begin_s: float = field(default_factory=time.monotonic)

    @property
    def request_id(self) -> str:
        """As clients and the log see it."""
        return f"req_{self.number}"

    def first_piece(self) -> None:
        """The answer begins."""
        self.first_piece_s = time.monotonic() - self.begin_s

    def line(self, total_s: float) -> str:
        """The log line."""
        own = ("number", "first_piece_s", "begin_s")
        values: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in own}
        first_ms = None if self.first_piece_s is None else round(self.first_piece_s * 1e3, 1)
        times = {"first_piece_ms": first_ms, "total_ms": round(total_s * 1e3, 1)}
        return json.dumps({"request_id": self.request_id} | values | times)


def record_of(request: Request) -> RequestRecord:
    """The record of a request in the gateway."""
    return cast(RequestRecord, request.state.record)


def refused(request: Request, error: ApiError) -> JSONResponse:
    """The answer that an error is."""
    record_of(request).error = error.code
    return JSONResponse(error.body(), error.status, headers=error.headers())


class Recorder:
    """ASGI middleware: gives every request a record and an id, and ends what nobody else ended."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        scope.setdefault("state", {})["record"] = record

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", record.request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, note)
        except (ClientGone, ClientDisconnect):
            record.status = CLIENT_GONE
        except Exception as error:
            frames = "".join(traceback.format_tb(error.__traceback__))  # without the text, which may quote the request
            log.error("%s failed with %s\n%s", record.request_id, type(error).__name__, frames)
            if record.status == 0:
                problem = ApiError(500, "the gateway failed; its log says more", "internal_error")
                await JSONResponse(problem.body(), 500)(scope, receive, note)
            record.status, record.error = 500, "internal_error"
        finally:
            self._write(record, scope)

    def _write(self, record: RequestRecord, scope: Scope) -> None:
        total_s = time.monotonic() - record.begin_s
        self._metrics.ended(record.route, record.status, total_s, record.first_piece_s)
        if not scope["path"].startswith(_QUIET):
            log.info("%s", record.line(total_s))
