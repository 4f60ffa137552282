"""Many streams at a time, clients that leave, servers that die: on real tritonservers that echo."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from client.serving.server import Server
from tests.conftest import echo_output, free_ports
from tests.gateways import RunningGateway
from tests.waiting import until

pytestmark = pytest.mark.server

GONE = {"the server closed the connection before the answer's end", "the server that worked on the answer is gone"}


def client_of(gateway: RunningGateway) -> openai.AsyncOpenAI:
    limits = httpx2.Limits(max_connections=None)
    transport = openai.DefaultAsyncHttpxClient(limits=limits, timeout=120)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, http_client=transport)


async def stream(client: openai.AsyncOpenAI, prompt: str, pieces: list[str]) -> str:
    """Collect the pieces; gives the error, or nothing."""
    try:
        async for chunk in await client.completions.create(model="vlm", prompt=prompt, stream=True):
            pieces.append(chunk.choices[0].text)
    except openai.APIError as error:
        return error.message
    return ""


def count(gateway: RunningGateway, what: str) -> int:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
    return int(client.completions.create(model="vlm", prompt=what).choices[0].text)


def test_two_hundred_streams_at_a_time_each_with_all_its_tokens_in_order(echo_gateway: RunningGateway) -> None:
    async def all_streams() -> list[list[str]]:
        answers: list[list[str]] = [[] for _ in range(200)]
        async with client_of(echo_gateway) as client:
            errors = await asyncio.gather(*(stream(client, f"count 50 10 {i}", a) for i, a in enumerate(answers)))
        assert errors == [""] * 200
        return answers

    wanted = [f"{number} " for number in range(50)]
    assert all([piece for piece in pieces if piece] == wanted for pieces in asyncio.run(all_streams()))


def test_an_error_after_the_first_token_is_one_event_and_the_end(echo_gateway: RunningGateway) -> None:
    body = {"model": "vlm", "prompt": "break the engine is gone", "stream": True}
    answer = httpx2.post(f"{echo_gateway.url}/v1/completions", json=body)
    assert answer.status_code == 200
    events = [event for event in answer.text.split("\n\n") if event]
    assert len(events) == 2
    assert '"text":"a piece"' in events[0]
    assert '"message":"the engine is gone"' in events[1]
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("streamed", [True, False])
def test_the_request_of_a_client_that_leaves_is_stopped(echo_gateway: RunningGateway, streamed: bool) -> None:
    before = {what: count(echo_gateway, what) for what in ("cancellations", "cut")}
    gone = echo_gateway.log.count('"status": 499')
    with contextlib.suppress(httpx2.TimeoutException):
        body = {"model": "vlm", "prompt": "forever", "stream": streamed}
        with httpx2.stream("POST", f"{echo_gateway.url}/v1/completions", json=body, timeout=1) as answer:
            next(answer.iter_bytes())
    assert until(lambda: count(echo_gateway, "cancellations") == before["cancellations"] + 1, 5)
    assert count(echo_gateway, "cut") == before["cut"]  # its call was not cancelled
    assert until(lambda: echo_gateway.log.count('"status": 499') == gone + 1, 5)


@pytest.fixture
def two_servers(tmp_path: Path) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as running:
        yield [running.enter_context(Server(echo_output(tmp_path / name), free_ports())) for name in ("a", "b")]


def test_when_one_of_two_servers_dies_requests_without_a_token_go_to_the_other(
    two_servers: list[Server], tmp_path: Path
) -> None:
    """25 that have no token yet and 25 that stream, shared by both servers; one is killed. None hangs."""
    servers = [server.endpoints.grpc for server in two_servers]
    with RunningGateway(tmp_path / "gateway", servers=servers) as gateway:
        go = tmp_path / "go"
        waiting: list[list[str]] = [[] for _ in range(25)]
        streaming: list[list[str]] = [[] for _ in range(25)]

        async def run() -> tuple[list[str], list[str]]:
            async with client_of(gateway) as client:
                tasks = [asyncio.create_task(stream(client, f"wait {go} {i}", p)) for i, p in enumerate(waiting)]
                tasks += [asyncio.create_task(stream(client, f"count 400 10 {i}", p)) for i, p in enumerate(streaming)]
                while not all(len(pieces) > 5 for pieces in streaming):
                    await asyncio.sleep(0.02)
                assert not any(waiting)
                kill(two_servers[0])
                go.touch()
                ended = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            return ended[:25], ended[25:]

        errors_of_waiting, errors_of_streaming = asyncio.run(run())
        assert errors_of_waiting == [""] * 25
        assert all("".join(pieces).startswith(f"wait {go}") for pieces in waiting)
        failed = [error for error in errors_of_streaming if error]
        assert 5 <= len(failed) <= 20, "the streams were not shared"
        assert set(failed) <= GONE
        whole = [pieces for pieces, error in zip(streaming, errors_of_streaming, strict=True) if not error]
        assert all(len([p for p in pieces if p]) == 400 for pieces in whole)
        assert gateway.status("/health/ready") == 200


def test_a_server_that_came_later_takes_the_requests_of_one_that_dies(tmp_path: Path) -> None:
    pieces: list[str] = []
    go = tmp_path / "go"
    with contextlib.ExitStack() as running:
        first = running.enter_context(Server(echo_output(tmp_path / "a"), free_ports()))
        later = Server(echo_output(tmp_path / "b"), free_ports())
        servers = [server.endpoints.grpc for server in (first, later)]
        gateway = running.enter_context(RunningGateway(tmp_path / "gateway", servers=servers))

        async def run() -> str:
            async with client_of(gateway) as client:
                task = asyncio.create_task(stream(client, f"wait {go}", pieces))
                sent = f'tvlm_gateway_running_requests{{server="{servers[0]}"}} 1.0'
                while sent not in httpx2.get(f"{gateway.url}/metrics").text:
                    await asyncio.sleep(0.02)
                running.enter_context(later)
                while f"{servers[1]} is ready" not in gateway.log:
                    await asyncio.sleep(0.02)
                assert not pieces
                kill(first)
                go.touch()
                return await asyncio.wait_for(task, 60)

        assert asyncio.run(run()) == ""
        assert "".join(pieces).startswith(f"wait {go}")


def kill(server: Server) -> None:
    port = server.endpoints.grpc.rsplit(":", 1)[1]
    victims = [p for p in psutil.Process().children(recursive=True) if f"--grpc-port={port}" in p.cmdline()]
    for victim in victims:
        if victim.name().startswith("tritonserver"):
            victim.kill()
