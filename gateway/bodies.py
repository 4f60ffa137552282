"""Request bodies: refused by their announced length before a byte is read, and bounded while they come."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import anyio
from starlette.requests import Request

from gateway.errors import ApiError, bad_request, overloaded
from gateway.settings import GatewaySettings


class Bodies:
    """Reads bodies; all that are held at a time fit into `bodies_mb`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._held = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a JSON request, which counts as held inside the `with` (ApiError)."""
        _check_headers(request)
        self._check_size(request)
        chunks = bytearray()
        try:
            with _in_time(self._settings.body_timeout_s):
                async for chunk in request.stream():
                    self._hold(len(chunk))
                    chunks += chunk
                    self._check(len(chunks))
            yield bytes(chunks)
        finally:
            self._held -= len(chunks)

    def _check_size(self, request: Request) -> None:
        announced = request.headers.get("content-length")
        if announced is not None:
            if not announced.isdecimal():
                raise bad_request("content-length", f"content-length: {announced!r} is not a number")
            self._check(int(announced))

    def _check(self, size: int) -> None:
        limit = self._settings.max_body_bytes
        if size > limit:
            raise ApiError(413, f"body: more than the limit of {limit:,} bytes (body_mb)", "body_too_large", "body")

    def _hold(self, size: int) -> None:
        if self._held + size > self._settings.bodies_mb * 1_000_000:
            raise overloaded(f"the bodies of requests take all of bodies_mb = {self._settings.bodies_mb:g}; try again")
        self._held += size


@contextlib.contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise ApiError(408, f"body: not complete within body_timeout_s = {seconds:g}", "timeout", "body") from None


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"content-type: must be application/json, not {kind[:80] or 'absent'}"
        raise ApiError(415, message, "unsupported_media_type", "content-type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        message = f"content-encoding: {coding[:80]} is not supported; send the body as it is"
        raise ApiError(415, message, "unsupported_media_type", "content-encoding")
