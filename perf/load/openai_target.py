"""OpenAI's chat completions over HTTP: this project's gateway, or any other server that speaks them (vLLM)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from client.types import VlmError
from perf.load.targets import Chunk, LeastBacklog, Payload, cost_of
from perf.workloads import Request
from perf.workloads.payload import picture_bytes

_STATUS = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_DONE = b"[DONE]"


def chat_body(request: Request, model: str) -> dict[str, Any]:
    """A streamed chat completion with data: URIs, of exactly `answer_tokens` tokens."""
    images = [{"type": "image_url", "image_url": {"url": data_uri(picture_bytes(p))}} for p in request.pictures]
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*images, {"type": "text", "text": request.prompt}]}],
        "max_tokens": request.answer_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def data_uri(file: bytes) -> str:
    """A JPEG file as a data: URI."""
    return "data:image/jpeg;base64," + base64.b64encode(file).decode()


class OpenAiTarget:
    """Servers at these URLs (http://host:port). Make it inside the event loop that uses it."""

    def __init__(self, urls: Sequence[str], model: str = "vlm") -> None:
        self._urls = [f"{url.rstrip('/')}/v1/chat/completions" for url in urls]
        self._model = model
        self._router = LeastBacklog(len(urls))
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers={"Content-Type": "application/json"}
        )

    def prepare(self, request: Request) -> Payload:
        """The request's body as bytes."""
        return Payload(json.dumps(chat_body(request, self._model)).encode(), cost_of(request))

    async def stream(self, payload: Payload, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send it to the server with the least backlog."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        with self._router.server(payload.cost) as index:
            try:
                async with self._http.post(self._urls[index], data=payload.message, timeout=timeout) as response:
                    if response.status != 200:
                        raise _refusal(response.status, await response.read())
                    done = False
                    async for line in response.content:
                        data = line.removeprefix(b"data:").strip()
                        done = done or data == _DONE
                        if data and not done and line.startswith(b"data:"):  # else a comment, an event's name or end
                            yield _chunk(data)
                    if not done:
                        raise VlmError("UNAVAILABLE", f"{self._urls[index]} ended before the answer did")
            except asyncio.TimeoutError as error:  # not the builtin one before Python 3.11
                raise VlmError("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s") from error
            except aiohttp.ClientError as error:
                raise VlmError("UNAVAILABLE", f"{self._urls[index]}: {error}") from error

    async def close(self) -> None:
        """Drop the connections."""
        await self._http.close()


def _chunk(data: bytes) -> Chunk:
    """One event (VlmError: it is an error, or no chat completion)."""
    try:
        event = json.loads(data)
        problem = event if event.get("object") == "error" else event.get("error")  # vLLM has had both
        if problem is None:
            usage = event.get("usage") or {}
            text = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
            return Chunk(text, usage.get("prompt_tokens"), usage.get("completion_tokens"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise VlmError("INTERNAL", f"an event that is no chunk of a chat completion: {data[:200]!r}") from None
    raise VlmError("UNAVAILABLE", str(problem.get("message", problem) if isinstance(problem, dict) else problem))


def _refusal(status: int, body: bytes) -> VlmError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip() or f"HTTP status {status} without a reason"
    return VlmError(_STATUS.get(status, "INTERNAL"), message)
