"""The load generator and what servers of OpenAI's protocol may send beside the usual: a scripted server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from perf.load import OK, Record, open_loop, open_target
from perf.workloads import Request

PIECE = json.dumps({"choices": [{"delta": {"content": "hi"}}]})
ROLE = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
DONE = "data: [DONE]\n\n"


async def record_of(body: str, timeout_s: float = 20.0, *, hangs: bool = False) -> Record:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(body.encode())
        if hangs:
            await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    served = web.AppRunner(app, shutdown_timeout=0.1)
    await served.setup()
    site = web.TCPSite(served, "127.0.0.1", 0)
    await site.start()
    host, port = served.addresses[0][:2]
    target = open_target([f"http://{host}:{port}"])
    asked = Request(0, 0.0, "text", "hi", (), 1)
    try:
        run = await open_loop([asked], [target.prepare(asked)], target, timeout_s)
    finally:
        await target.close()
        await served.cleanup()
    return run.records[0]


@pytest.mark.parametrize(
    "body",
    [
        f"data: {ROLE}\n\ndata: {PIECE}\n\ndata: {USAGE}\n\n{DONE}",
        f": ping\n\nevent: chunk\ndata: {PIECE}\n\n: ping\n\ndata:{USAGE}\n\n{DONE}",
        f"data: {PIECE}\r\n\r\ndata: {USAGE}\r\n\r\ndata: [DONE]\r\n\r\n",
    ],
    ids=["role first", "comments and names", "crlf"],
)
def test_every_framing_is_read(body: str) -> None:
    record = asyncio.run(record_of(body))
    assert (record.outcome, record.error) == (OK, "")
    assert record.first_s is not None
    assert (record.input_tokens, record.output_tokens) == (7, 1)


@pytest.mark.parametrize(
    ("event", "outcome", "error"),
    [
        ({"error": {"message": "full"}}, "UNAVAILABLE", "full"),
        ({"error": "full"}, "UNAVAILABLE", "full"),
        ({"object": "error", "message": "full", "code": 500}, "UNAVAILABLE", "full"),
        ({"choices": [{"text": "no delta"}]}, "INTERNAL", "no chunk of a chat completion"),
        ([1], "INTERNAL", "no chunk of a chat completion"),
    ],
)
def test_errors_and_nonsense_are_failures_of_this_request(event: Any, outcome: str, error: str) -> None:
    record = asyncio.run(record_of(f"data: {PIECE}\n\ndata: {json.dumps(event)}\n\n{DONE}"))
    assert record.outcome == outcome
    assert error in record.error
    assert record.end_s is None


def test_a_stream_that_stands_still_is_a_timeout() -> None:
    record = asyncio.run(record_of(f"data: {PIECE}\n\n", 0.3, hangs=True))
    assert (record.outcome, record.error) == ("DEADLINE_EXCEEDED", "no answer within 0.3 s")
