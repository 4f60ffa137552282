"""A request's body: refused by its announced length before a byte is read, and bounded while it comes."""

from __future__ import annotations

from starlette.requests import Request

from gateway.budget import Lease
from gateway.errors import ApiError, bad_request
from gateway.interruption import TimeLimit
from gateway.settings import GatewaySettings
from python_backends.lifting import Lifted, TooMuchText, lift


async def read_body(request: Request, settings: GatewaySettings, lease: Lease) -> bytearray:
    """The body of a JSON request (ApiError; starlette's ClientDisconnect)."""
    _check_headers(request)
    announced = request.headers.get("content-length")
    if announced is not None:
        if not announced.isdecimal():
            raise bad_request("content-length", f"content-length: {announced[:40]!r} is not a number")
        _check_size(int(announced), settings)
    body = bytearray()
    try:
        with TimeLimit(settings.body_timeout_s):
            async for chunk in request.stream():
                _check_size(len(body) + len(chunk), settings)
                lease.take(len(chunk))
                body += chunk
    except TimeoutError:
        message = f"body: not complete within body_timeout_s = {settings.body_timeout_s:g}"
        raise ApiError(408, message, "timeout", "body") from None
    return body


def _check_size(size: int, settings: GatewaySettings) -> None:
    limit = settings.max_body_bytes
    if size > limit:
        raise ApiError(413, f"body: more than the limit of {limit:,} bytes (body_mb)", "body_too_large", "body")


def lifted(body: bytearray, settings: GatewaySettings) -> Lifted:
    """The body without its pictures: as much text as may be parsed in one go (ApiError)."""
    try:
        return lift(body, settings.max_text_bytes)
    except TooMuchText as error:
        message = f"body: {error} (text_mb = {settings.text_mb:g})"
        raise ApiError(413, message, "body_too_large", "body") from None


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"content-type: must be application/json, not {kind[:80] or 'absent'}"
        raise ApiError(415, message, "unsupported_media_type", "content-type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        message = f"content-encoding: {coding[:80]} is not supported; send the body as it is"
        raise ApiError(415, message, "unsupported_media_type", "content-encoding")
