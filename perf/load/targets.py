"""Where load goes: what a target is, and the router before several servers.

A target prepares its messages before the run, so that a run measures the server and not the making of payloads.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from client.types import VlmError
from perf.workloads import Request

# What a picture costs beside a prompt token, for the least-backlog router: its visual tokens, and about as much again
# to encode them.
_PICTURE_TOKENS = 400
_AVOID_S = 1.0  # one that fails at once has no backlog: it would get everything


@dataclass(frozen=True)
class Chunk:
    """One response: its text, and the server's token counts with the last one."""

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None


class Target(Protocol):
    """Something that answers requests."""

    def prepare(self, request: Request) -> Any:
        """What is sent for a request, made before the run."""

    def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send it; the responses as they come. Raises VlmError."""

    async def close(self) -> None:
        """Drop the connections."""


@dataclass(frozen=True)
class Payload:
    """A request ready to be sent, and its cost to a router (tokens)."""

    message: Any
    cost: int


def cost_of(request: Request) -> int:
    """Tokens that a router would expect of it: prompt, pictures, and the answer's limit."""
    words = request.prompt.count(" ") + 1
    return words + _PICTURE_TOKENS * len(request.pictures) + request.answer_tokens


class LeastBacklog:
    """Gives each request to the server (by index) that has the least cost unanswered."""

    def __init__(self, servers: int) -> None:
        self._backlog = [0] * servers
        self._failed_s = [float("-inf")] * servers  # when they last did

    @contextmanager
    def server(self, cost: int) -> Iterator[int]:
        """The server's index; its backlog holds the cost until the end of the block."""
        index = min(range(len(self._backlog)), key=self._rank)
        self._backlog[index] += cost
        try:
            yield index
        except VlmError as error:
            if error.status == "UNAVAILABLE":
                self._failed_s[index] = time.monotonic()
            raise
        finally:
            self._backlog[index] -= cost

    def _rank(self, index: int) -> tuple[bool, int]:
        return time.monotonic() - self._failed_s[index] < _AVOID_S, self._backlog[index]


def check_url(url: str) -> None:
    """Refuse what no target is reached by (ValueError)."""
    parts = urlsplit(url)
    if parts.scheme not in ("grpc", "http", "https") or not parts.netloc:
        raise ValueError(f"url: {url!r} is neither grpc://host:port nor http://host:port")


def open_target(urls: Sequence[str], model: str = "vlm") -> Target:
    """grpc://host:port: Triton's model `vlm`; http(s)://...: OpenAI's chat completions. Call it inside the event loop.

    With several URLs of one kind, each request goes to the server with the least backlog.

    Raises:
        ValueError: the URLs are of both kinds, or of none.
    """
    from perf.load.grpc_target import GrpcTarget  # noqa: PLC0415  (both build on this module)
    from perf.load.openai_target import OpenAiTarget  # noqa: PLC0415

    for url in urls:
        check_url(url)
    kinds = {url.partition("://")[0] == "grpc" for url in urls}
    if len(kinds) != 1:
        raise ValueError(f"url: all grpc:// or all http://, got {', '.join(urls)}")
    return GrpcTarget(urls) if kinds.pop() else OpenAiTarget(urls, model)
