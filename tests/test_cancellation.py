"""However a request ends before its answer: nothing of it goes on in any stage."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from client import RetryPolicy, VlmClient, VlmError
from client.serving.server import Endpoints
from tests.gateways import RunningGateway
from tests.test_failures import metric
from tests.test_server import engine_stats, picture, statistics
from tests.waiting import until

pytestmark = pytest.mark.server

LONG = {"max_tokens": 1500, "ignore_eos": True}
SHORTER = {"max_tokens": 1000, "ignore_eos": True}  # eight pictures have 512 visual tokens


@pytest.fixture
def vlm(demo_server: Endpoints) -> Iterator[VlmClient]:
    with VlmClient(demo_server.grpc, retry=RetryPolicy(attempts=1)) as client:
        yield client


def is_idle(server: Endpoints) -> bool:
    """No sequence in the engine, its KV given back, nothing counted as running or waiting."""
    stats = engine_stats(server)
    gauges = ("tvlm_running_sequences", "tvlm_waiting_requests", "tvlm_prefill_tokens", "tvlm_encode_tokens")
    return stats["running"] == 0 and not any(metric(server, gauge) for gauge in gauges)


def test_http_client_that_leaves_generate_stream_frees_its_sequence(demo_server: Endpoints) -> None:
    body = {
        "text_input": "Tell me a very long story.", "stream": True, "sampling_parameters": json.dumps(LONG),
    }  # fmt: skip
    request = urllib.request.Request(
        f"{demo_server.http}/v2/models/vlm/generate_stream", json.dumps(body).encode(), {"Connection": "close"}
    )
    cancelled = metric(demo_server, "tvlm_requests_total", outcome="CANCELLED")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        assert engine_stats(demo_server)["running"] == 1
    assert until(lambda: is_idle(demo_server), 20)
    assert until(lambda: metric(demo_server, "tvlm_requests_total", outcome="CANCELLED") == cancelled + 1, 10)


def test_a_request_is_stopped_by_its_id(demo_server: Endpoints) -> None:
    """As docs/clients.md has it, over Triton's own HTTP."""

    def post(path: str, **body: object) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(demo_server.http.removeprefix("http://"), timeout=30)
        connection.request("POST", f"/v2/models/vlm/{path}", json.dumps(body), {"Connection": "close"})
        return connection.getresponse()

    asked = {"text_input": "Tell me a very long story.", "sampling_parameters": json.dumps(LONG)}
    answer = post("generate_stream", id="story-1", stream=True, **asked)
    answer.readline()
    assert json.loads(post("generate", id="story-2", stop=True).read())["text_output"] == ""
    assert engine_stats(demo_server)["running"] == 1
    stopped = post("generate", id="story-1", stop=True)
    assert (stopped.status, json.loads(stopped.read())["text_output"]) == (200, "")
    assert b"[CANCELLED] the request was cancelled" in answer.read()
    assert until(lambda: is_idle(demo_server), 20)
    nameless = post("generate", stop=True)
    assert (nameless.status, json.loads(nameless.read())["error"][:19]) == (400, "[INVALID_ARG] stop:")


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("in_prefill", [True, False])
def test_gateway_client_that_leaves_frees_its_sequence(
    demo_server: Endpoints, demo_gateway: RunningGateway, in_prefill: bool, streamed: bool
) -> None:
    def prefills() -> bool:
        return metric(demo_server, "tvlm_prefill_tokens") > 0

    assert until(lambda: is_idle(demo_server), 20)
    cancelled = metric(demo_server, "tvlm_requests_total", outcome="CANCELLED")
    prompt = f"Tell me a story ({streamed}). " + ("Say more. " * 250 if in_prefill else "")
    body = {"model": "vlm", "messages": [{"role": "user", "content": prompt}], "stream": streamed, **SHORTER}
    connection = http.client.HTTPConnection("127.0.0.1", demo_gateway.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert until(lambda: metric(demo_server, "tvlm_running_sequences") == 1 and prefills() is in_prefill, 30)
    connection.close()
    assert until(lambda: is_idle(demo_server), 20)
    assert until(lambda: metric(demo_server, "tvlm_requests_total", outcome="CANCELLED") == cancelled + 1, 10)
    assert until(lambda: demo_gateway.ended[-1]["status"] == 499, 5)
    assert (demo_gateway.ended[-1]["first_piece_ms"] is None) is (in_prefill or not streamed)


def test_deadline_that_passes_frees_the_sequence(demo_server: Endpoints, vlm: VlmClient) -> None:
    with pytest.raises(VlmError, match="deadline_ms: the answer was not complete within 3000 ms"):
        vlm.generate("Tell me a very long story.", deadline_ms=3000, **LONG)
    assert until(lambda: is_idle(demo_server), 20)


def test_images_of_a_client_that_left_are_not_encoded(demo_server: Endpoints, vlm: VlmClient) -> None:
    """Sixteen requests of eight images want many times what the encode budget holds."""
    requests = 16
    pictures = [[picture("red", size=700 + 8 * r + i) for i in range(8)] for r in range(requests)]
    before, _ = statistics(demo_server, "vision_encoder")
    streams = [vlm.stream("What is it?", images=images, **SHORTER) for images in pictures]

    def first_piece(number: int) -> str | None:
        try:
            return next(streams[number])
        except (VlmError, StopIteration):
            return None

    with ThreadPoolExecutor(requests) as pool:
        pieces = [pool.submit(first_piece, number) for number in range(requests)]
        assert until(lambda: statistics(demo_server, "vision_encoder")[0] > before, 30)
        for stream in streams:
            stream.close()
        for piece in pieces:
            piece.result()
    assert until(lambda: is_idle(demo_server), 30)
    assert statistics(demo_server, "vision_encoder")[0] - before < 8 * requests
