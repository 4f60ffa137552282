"""The gateway's limits under attack, over raw sockets: memory stays bounded, and a good client is served meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from client.serving.server import Endpoints
from tests.gateways import RunningGateway
from tests.waiting import until

pytestmark = pytest.mark.server

KEY = "sk-good"
HELLO = {"model": "vlm", "prompt": "Hello"}
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def gateway(echo_server: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    names = [("sk-good", "good"), ("sk-slow", "slow"), ("sk-few", "few")]
    (folder / "keys").write_text("".join(f"{hashlib.sha256(k.encode()).hexdigest()}  {n}\n" for k, n in names))
    settings: dict[str, Any] = {
        "api_keys_file": "keys",
        "header_timeout_s": 1,
        "body_timeout_s": 1,
        "idle_timeout_s": 1,
        "write_timeout_s": 1,
        "connections": 200,
        "body_mb": 2,
        "bodies_mb": 8,
        "header_kb": 8,
    }
    with RunningGateway(folder, servers=[echo_server.grpc], **settings) as running:
        yield running


def post(gateway: RunningGateway, body: object, key: str = KEY, path: str = "/v1/completions") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def connect(gateway: RunningGateway, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
    connection.sendall(data)
    return connection


def head(path: str = "/v1/completions", **headers: object) -> bytes:
    named = {"Host": "x", "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    named |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    return f"POST {path} HTTP/1.1\r\n".encode() + "".join(f"{k}: {v}\r\n" for k, v in named.items()).encode() + b"\r\n"


def ending(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            got += chunk
    return got


def first_answer(connection: socket.socket) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of the next response."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


def serves(gateway: RunningGateway) -> bool:
    return post(gateway, HELLO)[0] == 200


def test_a_thousand_idle_connections_are_bounded_closed_and_shut_nobody_out(gateway: RunningGateway) -> None:
    assert serves(gateway)
    before = gateway.resident_bytes()
    with contextlib.ExitStack() as opened:
        for number in range(1000):
            opened.enter_context(connect(gateway, b"POST /v1/comp" if number % 2 else b""))
            if number % 250 == 0:
                assert serves(gateway)
        assert serves(gateway)
        assert gateway.resident_bytes() - before < 64 * MEGABYTE
    assert serves(gateway)


def test_headers_that_drip_or_never_end_are_cut_off(gateway: RunningGateway) -> None:
    silent = connect(gateway)
    dripping = connect(gateway, b"GET /health/live HTTP/1.1\r\n")
    kept = connect(gateway, b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(ConnectionError):
        ended = pool.submit(ending, dripping)
        begin = time.monotonic()
        while not ended.done():
            dripping.sendall(b"x: y\r\n")
            assert time.monotonic() - begin < 10
            time.sleep(0.05)  # the attack itself
    assert ending(silent) == b""
    assert ending(kept).startswith(b"HTTP/1.1 200")  # and closed when it idles


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /health/live?" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 4_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"x" * 100_000,
        b"\x16\x03\x01 nothing of HTTP\r\n\r\n",
    ],
)
def test_large_or_broken_heads_are_refused(gateway: RunningGateway, request_head: bytes) -> None:
    with contextlib.suppress(ConnectionError), connect(gateway) as connection:
        connection.sendall(request_head)
        answer = ending(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert serves(gateway)


def test_a_large_body_is_refused_by_its_announced_length(gateway: RunningGateway) -> None:
    with connect(gateway, head(Content_Length=100 * MEGABYTE)) as connection:  # of which none is sent
        status, _, text = first_answer(connection)
    assert status == 413
    assert "body_mb" in text


def test_bodies_of_a_hundred_megabytes_are_cut_off_and_not_kept(gateway: RunningGateway) -> None:
    before = gateway.resident_bytes()
    chunk = b"100000\r\n" + b"x" * MEGABYTE + b"\r\n"

    def attack(_: int) -> bytes:
        with connect(gateway, head(Transfer_Encoding="chunked")) as connection:
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    connection.sendall(chunk)
            return ending(connection)

    with ThreadPoolExecutor(16) as pool:
        attacks = pool.map(attack, range(16))
        assert serves(gateway)
        answers = list(attacks)
    assert {answer[9:12] for answer in answers} <= {b"413", b"503", b"408", b""}  # 408: 2 MB took the attacker a second
    assert gateway.resident_bytes() - before < 64 * MEGABYTE


def test_bodies_full_of_small_values_take_no_memory_and_no_time(gateway: RunningGateway) -> None:
    before = gateway.resident_bytes()
    for many in ([0] * 110_000, [[]] * 60_000, "a" * 1_500_000):
        status, answer = post(gateway, {**HELLO, "metadata": many})
        assert (status, answer["error"]["param"]) == (413, "body")
        assert "limit of 100,000" in answer["error"]["message"] or "text_mb = 1" in answer["error"]["message"]
    status, answer = post(gateway, {"model": "vlm", "messages": [0] * 90_000}, path="/v1/chat/completions")
    assert (status, answer["error"]["param"]) == (400, "messages[0]")
    status, answer = post(gateway, {**HELLO, "stop": [0] * 90_000})
    assert (status, answer["error"]["param"]) == (400, "stop[0]")
    assert gateway.resident_bytes() - before < 64 * MEGABYTE


def test_a_body_that_drips_is_given_up(gateway: RunningGateway) -> None:
    with connect(gateway, head(Content_Length=1000) + b"{") as connection:
        status, _, text = first_answer(connection)
    assert status == 408
    assert "body_timeout_s" in text


def test_ten_thousand_bad_keys_cost_nothing_and_get_nothing(gateway: RunningGateway) -> None:
    before = gateway.resident_bytes()

    def attack(worker: int) -> set[bytes]:
        statuses = set()
        with connect(gateway) as connection, connection.makefile("rb") as answers:
            for batch in range(25):  # pipelined, or most of the time would be the attacker's
                keys = [f"Bearer sk-{worker}-{batch}-{number}" for number in range(50)]
                connection.sendall(b"".join(head(Authorization=key, Content_Length=0) for key in keys))
                for _ in keys:
                    statuses.add(answers.readline().split()[1])
                    length = 0
                    while (line := answers.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length"):
                            length = int(line.split(b":")[1])
                    answers.read(length)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack, worker) for worker in range(8)]
        assert serves(gateway)
        assert {status for done in attacks for status in done.result()} == {b"401"}
    assert gateway.resident_bytes() - before < 32 * MEGABYTE
    assert serves(gateway)


def test_a_refused_key_is_told_so_before_its_body_is_read(gateway: RunningGateway) -> None:
    with connect(gateway, head(Authorization="Bearer sk-bad", Content_Length=MEGABYTE)) as connection:
        status, headers, _ = first_answer(connection)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    for scheme in ("", "Basic c2stZ29vZDo=", "Bearer", f"bearer  {KEY}x"):
        with connect(gateway, head(Authorization=scheme, Content_Length=0)) as connection:
            assert first_answer(connection)[0] == 401


def test_neither_keys_nor_content_are_logged(gateway: RunningGateway) -> None:
    secret = "QUJDREVGR0g" * 20
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{secret}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": secret}, image]}]
    assert post(gateway, {"model": "vlm", "messages": messages}, path="/v1/chat/completions")[0] == 200
    post(gateway, {"model": secret, "prompt": "x"})
    post(gateway, {"model": "vlm", "prompt": f"fail INTERNAL {secret}"})
    post(gateway, {"model": "vlm", "prompt": [secret, secret]})
    post(gateway, HELLO, key=f"sk-{secret}")
    post(gateway, HELLO, path=f"/v1/{secret}")
    assert until(lambda: gateway.log.count('"status": 404') >= 2, 5)
    assert secret not in gateway.log
    assert KEY not in gateway.log
    assert '"key": "good"' in gateway.log


def test_a_client_that_reads_nothing_is_cut_off_and_its_request_cancelled(gateway: RunningGateway) -> None:
    cancelled = int(post(gateway, {"model": "vlm", "prompt": "cancellations"})[1]["choices"][0]["text"])
    body = json.dumps({"model": "vlm", "prompt": "flood", "stream": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", gateway.port))
        connection.sendall(head(Content_Length=len(body)) + body)

        def cancellations() -> int:
            return int(post(gateway, {"model": "vlm", "prompt": "cancellations"})[1]["choices"][0]["text"])

        assert until(lambda: cancellations() > cancelled, 20)
    assert until(lambda: '"status": 499' in gateway.log, 5)
