"""What Triton's HTTP `generate` and `generate_stream` send, for the sync and the async client."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from client.request import MODEL, AnswerBuilder, VlmRequest, error_of
from client.types import Answer, VlmError

# Triton's statuses as its HTTP front end sends them. 400 is not among them: Triton 24.10 answers with it whatever a
# model refuses, for any reason; over gRPC the status is kept.
_STATUS = {404: "NOT_FOUND", 499: "CANCELLED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
# Triton waits for idle connections before it exits, as long as its exit timeout: keep none.
HEADERS = {"Connection": "close"}


def url_of(base_url: str, request: VlmRequest) -> str:
    """Where the request goes."""
    return f"{base_url}/v2/models/{MODEL}/{'generate_stream' if request.stream else 'generate'}"


@dataclass
class Timeout:
    """The time a request may take, in seconds from now; None for ever."""

    timeout_s: float | None
    _started: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Raise DEADLINE_EXCEEDED when it is over."""
        if self.timeout_s is not None and time.monotonic() - self._started > self.timeout_s:
            raise self.error()

    def error(self) -> VlmError:
        """That it is over."""
        return VlmError("DEADLINE_EXCEEDED", f"no answer within {self.timeout_s:.3g} s (timeout_s)")


class EventParser:
    """Cuts a text/event-stream body into the data of its events, however it was cut on the way."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that are whole now; each is a body for `outputs_of`."""
        self._pending += chunk
        *events, self._pending = self._pending.split(b"\n\n")
        return [event.removeprefix(b"data:") for event in events]


class StreamedAnswer:
    """An answer that comes as a text/event-stream."""

    def __init__(self) -> None:
        self._parser = EventParser()
        self._events: deque[bytes] = deque()
        self._builder = AnswerBuilder()

    @property
    def answer(self) -> Answer:
        """What has been taken so far."""
        return self._builder.answer()

    @property
    def has_next(self) -> bool:
        """Whether an event is there that has not been taken."""
        return bool(self._events)

    def feed(self, chunk: bytes) -> None:
        """Take in what was received."""
        self._events.extend(self._parser.feed(chunk))

    def next_text(self) -> str:
        """The text of the next event (VlmError: it is an error)."""
        return self._builder.add(outputs_of(self._events.popleft()))


def outputs_of(body: bytes) -> dict[str, Any]:
    """The outputs of one response (VlmError: it is an error)."""
    outputs = json.loads(body)
    if "error" in outputs:
        raise error_of(str(outputs["error"]))
    return dict(outputs)


def refusal(status: int, body: bytes) -> VlmError:
    """A response that is not 200, as an error."""
    try:
        message = str(json.loads(body.removeprefix(b"data:"))["error"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip() or "the server gave no reason"
    return error_of(message, _STATUS.get(status, "UNKNOWN"))


def nobody_there(base_url: str) -> VlmError:
    """No server could be reached."""
    hint = "start one with `tvlm serve`, or give its address"
    return VlmError("UNAVAILABLE", f"no server answers at {base_url}; {hint}")


def cut_off() -> VlmError:
    """The connection ended before the answer did."""
    return VlmError("UNAVAILABLE", "the server closed the connection before the answer's end")
