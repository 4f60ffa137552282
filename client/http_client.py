"""The model `vlm` over HTTP: Triton's `generate` and `generate_stream`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import urllib3

from client.request import MODEL, AnswerBuilder, VlmRequest
from client.types import Answer, TextStream, VlmError

# Triton's statuses as its HTTP front end sends them. 400 is not among them: Triton 24.10 answers with it whatever a
# model refuses, for any reason; over gRPC the status is kept.
_STATUS = {404: "NOT_FOUND", 499: "CANCELLED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
# Triton waits for idle connections before it exits, as long as its exit timeout: keep none.
_HEADERS = {"Connection": "close"}
_FOREVER_S = 1e9


class HttpTransport:
    """Requests to one server (http://host:port) over a pool of connections; threads may share it."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._pool = urllib3.PoolManager(maxsize=64, retries=False, headers=_HEADERS)

    def generate(self, request: VlmRequest) -> Answer:
        """Send the request and wait for its answer."""
        builder = AnswerBuilder()
        builder.add(_checked(json.loads(self._post("generate", request).data)))
        return builder.answer()

    def stream(self, request: VlmRequest) -> TextStream:
        """Send the request; its pieces come from the stream."""
        return _HttpStream(self._post("generate_stream", request), request.timeout_s)

    def close(self) -> None:
        """Close the pool."""
        self._pool.clear()

    def _post(self, action: str, request: VlmRequest) -> urllib3.BaseHTTPResponse:
        url = f"{self._base_url}/v2/models/{MODEL}/{action}"
        timeout = urllib3.Timeout(total=request.timeout_s)
        try:
            response = self._pool.request(
                "POST", url, json=request.json_body(), timeout=timeout, preload_content=action == "generate"
            )
        except urllib3.exceptions.NewConnectionError as error:
            hint = f"no server answers at {self._base_url}; start one with `tvlm serve`, or give its address"
            raise VlmError("UNAVAILABLE", hint) from error
        except urllib3.exceptions.TimeoutError as error:
            raise _late(request.timeout_s) from error
        except urllib3.exceptions.HTTPError as error:
            raise _cut_off() from error
        if response.status != 200:
            raise _refusal(response.status, response.data)
        return response


class _HttpStream(TextStream):
    def __init__(self, response: urllib3.BaseHTTPResponse, timeout_s: float | None) -> None:
        self._response = response
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + (_FOREVER_S if timeout_s is None else timeout_s)
        self._events = server_sent_events(response)
        self._builder = AnswerBuilder()

    @property
    def answer(self) -> Answer:  # type: ignore[override]
        return self._builder.answer()

    def __next__(self) -> str:
        if time.monotonic() > self._deadline:
            self.close()
            raise _late(self._timeout_s)
        try:
            return self._builder.add(_checked(json.loads(next(self._events))))
        except urllib3.exceptions.TimeoutError as error:
            self.close()
            raise _late(self._timeout_s) from error
        except urllib3.exceptions.HTTPError as error:
            raise _cut_off() from error

    def close(self) -> None:
        # The server sees a client that went away when it writes its next piece.
        self._response.close()


def server_sent_events(response: urllib3.BaseHTTPResponse) -> Iterator[str]:
    """The data of each event of a text/event-stream body, in order."""
    pending = b""
    for chunk in response.stream(amt=65536):
        pending += chunk
        *events, pending = pending.split(b"\n\n")
        for event in events:
            yield event.decode().removeprefix("data:").strip()


def _checked(body: Any) -> dict[str, Any]:
    if "error" in body:
        raise VlmError("UNKNOWN", body["error"])
    return dict(body)


def _refusal(status: int, body: bytes) -> VlmError:
    try:
        message = json.loads(body.removeprefix(b"data:"))["error"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip() or "the server gave no reason"
    return VlmError(_STATUS.get(status, "UNKNOWN"), message)


def _late(timeout_s: float | None) -> VlmError:
    return VlmError("DEADLINE_EXCEEDED", f"no answer within timeout_s = {timeout_s}")


def _cut_off() -> VlmError:
    return VlmError("UNAVAILABLE", "the server closed the connection before the answer's end")
