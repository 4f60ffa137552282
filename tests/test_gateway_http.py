"""What HTTP/1.1 clients do beside the usual, over raw sockets: pipelining, 100-continue, leaving at any time."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.gateways import RunningGateway
from tests.waiting import until

pytestmark = pytest.mark.server


def request(*headers: str, **fields: Any) -> bytes:
    """A request of /v1/completions, head and body."""
    body = json.dumps({"model": "vlm", "stream": True, **fields}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "".join(f"{line}\r\n" for line in [*lines, f"Content-Length: {len(body)}", ""]).encode() + body


def connect(gateway: RunningGateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=20)


def read_until(connection: socket.socket, end: bytes, times: int = 1) -> bytes:
    got = b""
    while got.count(end) < times:
        chunk = connection.recv(65536)
        assert chunk, f"closed after {got[-200:]!r}"
        got += chunk
    return got


def gone(gateway: RunningGateway) -> int:
    return gateway.log.count('"status": 499')


def test_head_and_first_piece_of_a_stream_come_in_one_packet(echo_gateway: RunningGateway) -> None:
    with connect(echo_gateway) as connection:
        connection.sendall(request(prompt="count 3 100"))
        first = connection.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b'"text":"0 "' in first
        assert b'"text":"2 "' in read_until(connection, b"0\r\n\r\n")


def test_pipelined_requests_are_answered_one_after_the_other(echo_gateway: RunningGateway) -> None:
    with connect(echo_gateway) as connection:
        connection.sendall(b"".join(request(prompt=f"count {count} 1") for count in (2, 3, 4)))
        answers = read_until(connection, b"0\r\n\r\n", 3).split(b"HTTP/1.1 200 OK")[1:]
    assert [answer.count(b'"finish_reason":null') for answer in answers] == [2, 3, 4]
    assert all(answer.count(b"[DONE]") == 1 for answer in answers)


def test_a_client_that_waits_for_100_continue_gets_it_before_the_answer(echo_gateway: RunningGateway) -> None:
    head, _, body = request("Expect: 100-continue", prompt="count 2 1").partition(b"\r\n\r\n")
    with connect(echo_gateway) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_until(connection, b"0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


OFFERS = {
    "h2c": ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"],
    "websocket": ["Upgrade: websocket", "Connection: keep-alive", "connection: upgrade"],
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("size", [1 << 20, 7], ids=["whole", "in pieces"])
def test_an_offer_of_another_protocol_is_ignored(echo_gateway: RunningGateway, offer: list[str], size: int) -> None:
    sent = request(*offer, prompt="count 2 1") + request(prompt="count 3 1") + request(*offer, prompt="count 4 1")
    with connect(echo_gateway) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin in range(0, len(sent), size):
            connection.sendall(sent[begin : begin + size])
        answers = read_until(connection, b"0\r\n\r\n", 3).split(b"HTTP/1.1 200 OK")[1:]
    assert [answer.count(b'"finish_reason":null') for answer in answers] == [2, 3, 4]


def test_an_offer_with_a_chunked_body_or_none_is_ignored(echo_gateway: RunningGateway) -> None:
    head, _, body = request(*OFFERS["h2c"], prompt="count 2 1").partition(b"\r\n\r\n")
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    get = "\r\n".join(["GET /health/ready HTTP/1.1", "Host: x", *OFFERS["websocket"], "", ""]).encode()
    with connect(echo_gateway) as connection:
        connection.sendall(get + head + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert read_until(connection, b"\r\n0\r\n\r\n").count(b"HTTP/1.1 200 OK") == 2


def test_an_offer_does_not_lift_the_limit_of_headers(echo_gateway: RunningGateway) -> None:
    got = b""
    with connect(echo_gateway) as connection, contextlib.suppress(ConnectionError):  # cut off while it is sent
        connection.sendall(request(*OFFERS["h2c"], "X: " + "x" * 100_000, prompt="count 2 1"))
        while chunk := connection.recv(65536):
            got += chunk
    assert b" 200 " not in got


@pytest.mark.parametrize(
    "sent",
    [request(prompt="forever")[:-5], request(prompt="forever"), request(prompt="forever") * 2],
    ids=["in its body", "before its answer", "with another request waiting"],
)
def test_a_client_that_leaves_is_noticed(echo_gateway: RunningGateway, sent: bytes) -> None:
    before, errors = gone(echo_gateway), echo_gateway.log.count("ERROR")
    with connect(echo_gateway) as connection:
        connection.sendall(sent)
    assert until(lambda: gone(echo_gateway) == before + 1, 5)
    assert echo_gateway.log.count("ERROR") == errors
    running = "tvlm_gateway_running_requests{"
    assert all(line.endswith(" 0.0") for line in metrics(echo_gateway) if line.startswith(running))


def metrics(gateway: RunningGateway) -> list[str]:
    with connect(gateway) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b""
        while chunk := connection.recv(65536):
            got += chunk
    return got.decode().splitlines()


def test_an_allowed_origin_may_send_the_headers_that_it_asks_for(tmp_path: Path) -> None:
    wanted = "authorization,content-type,x-stainless-os,x-stainless-retry-count"
    with RunningGateway(tmp_path, ready=False, cors_origins=["https://app.example"]) as gateway:
        assert preflight(gateway, "https://app.example", wanted) == (200, "https://app.example", wanted)
        assert preflight(gateway, "https://other.example", wanted)[:2] == (400, None)


def preflight(gateway: RunningGateway, origin: str, wanted: str) -> tuple[int, str | None, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    connection.request("OPTIONS", "/v1/chat/completions", headers=asked)
    answer = connection.getresponse()
    connection.close()
    origins, headers = (answer.getheader(f"Access-Control-Allow-{name}") for name in ("Origin", "Headers"))
    return answer.status, origins, headers
