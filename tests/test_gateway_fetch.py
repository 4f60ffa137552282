"""Remote images, fetched from a local hostile server over real sockets. 127.0.0.2 stands for a public address."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from PIL import Image

from gateway.addresses import is_allowed
from gateway.budget import Budget
from gateway.errors import ApiError
from gateway.fetch import Fetcher
from gateway.settings import GatewaySettings

PUBLIC, INSIDE = "127.0.0.2", "127.0.0.1"
Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    return buffer.getvalue()


def reply(body: bytes, status: str = "200 OK", **headers: object) -> bytes:
    named = {"Content-Length": len(body), "Connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value is not None)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class HostileServer:
    """Answers each path as told, on the public and on the inside address; remembers who asked for what."""

    def __init__(self, paths: dict[str, bytes | Handler]) -> None:
        self.paths = paths
        self.asked: list[tuple[str, str]] = []  # (address, path)

    async def __aenter__(self) -> HostileServer:
        self._inside = await asyncio.start_server(self._answer, INSIDE, 0)  # first: others take ports there, too
        self.port = self._inside.sockets[0].getsockname()[1]
        self._public = await asyncio.start_server(self._answer, PUBLIC, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._public.close()
        self._inside.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            self.asked.append((writer.get_extra_info("sockname")[0], path))
            found = self.paths[path]
            if isinstance(found, bytes):
                writer.write(found)
                await writer.drain()
            else:
                await found(path, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def fetch(
    paths: dict[str, bytes | Handler],
    path: str = "/image",
    answers: dict[str, list[list[str]]] | None = None,
    host: str = "images.example",
    **changes: Any,
) -> tuple[bytes | ApiError, HostileServer, list[str]]:
    """Fetch from a server; `answers` are what the name server says, in turn. Gives what was resolved too."""
    resolved: list[str] = []
    known = answers or {}

    async def resolve(name: str, _: int) -> list[str]:
        resolved.append(name)
        if name not in known:
            return [PUBLIC]
        return known[name].pop(0) if len(known[name]) > 1 else known[name][0]

    async def run() -> tuple[bytes | ApiError, HostileServer, list[str]]:
        async with HostileServer(paths) as server:
            for name, value in server.paths.items():
                if isinstance(value, bytes):
                    server.paths[name] = value.replace(b"PORT", str(server.port).encode())
            settings = GatewaySettings(
                **{
                    "allowed_media_domains": (f"images.example:{server.port}",),
                    "allowed_media_networks": (f"{PUBLIC}/32",),
                    "remote_timeout_s": 2,
                    "image_bytes_mb": 0.1,
                    **changes,
                }
            )
            with Budget(settings.bodies_mb).lease() as lease:
                try:
                    url = f"http://{host}:{server.port}{path}"
                    return await Fetcher(settings, resolve).fetch("messages[0]", url, lease), server, resolved
                except ApiError as error:
                    return error, server, resolved

    return anyio.run(run)


def refused(answer: bytes | ApiError, status: int, sentence: str) -> None:
    assert isinstance(answer, ApiError)
    assert answer.status == status, answer.message
    assert sentence in answer.message
    assert answer.message.startswith("messages[0]: ")
    assert answer.param == "messages[0]"


def test_an_image_of_an_allowed_host_comes_whole_and_without_compression() -> None:
    answer, server, resolved = fetch({"/image": reply(png())})
    assert answer == png()
    assert server.asked == [(PUBLIC, "/image")]
    assert resolved == ["images.example"]


@pytest.mark.parametrize("host", ["other.example", "images.example.evil.example", "evilimages.example", "127.0.0.1"])
def test_other_hosts_are_refused_before_their_names_are_looked_up(host: str) -> None:
    answer, server, resolved = fetch({"/image": reply(png())}, host=host)
    refused(answer, 400, "allowed_media_domains")
    assert (server.asked, resolved) == ([], [])


def test_subdomains_of_an_allowed_host_are_allowed() -> None:
    assert fetch({"/image": reply(png())}, host="cdn.images.example")[0] == png()


@pytest.mark.parametrize(
    "address", [INSIDE, "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
)
def test_an_allowed_name_with_an_inside_address_is_refused(address: str) -> None:
    answer, server, _ = fetch({"/image": reply(png())}, answers={"images.example": [[PUBLIC, address]]})
    refused(answer, 400, "allowed_media_networks")
    assert server.asked == []


def test_a_name_that_changes_its_address_after_the_check_gains_nothing() -> None:
    """DNS rebinding: the second answer would be the inside."""
    answer, server, resolved = fetch({"/image": reply(png())}, answers={"images.example": [[PUBLIC], [INSIDE]]})
    assert answer == png()
    assert server.asked == [(PUBLIC, "/image")]
    assert len(resolved) == 1


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:PORT/secret",
        "http://other.example:PORT/secret",
        "http://[::1]:PORT/secret",
        "//127.0.0.1:PORT/",
    ],
)
def test_a_redirect_out_of_the_allowed_hosts_is_refused(target: str) -> None:
    answer, server, _ = fetch({"/image": reply(b"", "302 Found", Location=target), "/secret": reply(png())})
    refused(answer, 400, "allowed_media_domains")
    assert [path for _, path in server.asked] == ["/image"]


def test_a_redirect_to_an_allowed_name_that_now_has_an_inside_address_is_refused() -> None:
    paths: dict[str, bytes | Handler] = {"/image": reply(b"", "302 Found", Location="/2"), "/2": reply(png())}
    answer, server, _ = fetch(paths, answers={"images.example": [[PUBLIC], [INSIDE]]})
    refused(answer, 400, "allowed_media_networks")
    assert [path for _, path in server.asked] == ["/image"]


def test_three_redirects_are_followed_and_four_are_not() -> None:
    def hops(count: int) -> dict[str, bytes | Handler]:
        hop: dict[str, bytes | Handler] = {f"/{i}": reply(b"", "302 Found", Location=f"/{i + 1}") for i in range(count)}
        return hop | {f"/{count}": reply(png())}

    assert fetch(hops(3), "/0")[0] == png()
    refused(fetch(hops(4), "/0")[0], 422, "more than 3 redirects")


def test_a_redirect_to_another_scheme_is_refused() -> None:
    refused(
        fetch({"/image": reply(b"", "302 Found", Location="file:///etc/passwd")})[0], 400, "data: URI or an http(s)"
    )


def _forever(head: bytes, piece: bytes, pause_s: float = 0) -> Handler:
    """An answer whose pieces never end."""

    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


_CHUNKED = b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def _silent(_: str, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("server", "status", "sentence"),
    [
        (_forever(_CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"), 413, "image_bytes_mb"),
        (reply(b"x" * 200_000), 413, "image_bytes_mb"),
        (reply(b"", Content_Length=10**12), 413, "image_bytes_mb"),
        (reply(png(), Content_Length=100_000), 422, "ClientPayloadError"),  # announces more than it sends
        (reply(png(), Content_Length="-5"), 422, ""),
        (_forever(b"200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", pause_s=0.05), 422, "remote_timeout_s = 0.5"),
        (_silent, 422, "remote_timeout_s = 0.5"),
        (_forever(b"200 OK\r\nX-Long: ", b"x" * 65536), 422, ""),
        (_forever(b"200 OK\r\n", b"X: y\r\n" * 1000), 422, ""),
        (_forever(_CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), 422, ""),
        (_forever(b"100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), 422, "remote_timeout_s = 0.5"),
        (reply(b"no", "404 Not Found"), 422, "status 404"),
        (b"\0\1\2\3\r\n\r\n", 422, ""),
        (reply(gzip.compress(b"\0" * 10**7), Content_Encoding="gzip"), 422, "compressed"),
        (reply(gzip.compress(b"\0" * 10**7)), 415, "gzip is not supported (accepted: JPEG"),
        (reply(b"<svg/>", Content_Type="image/png"), 415, "not supported (accepted: JPEG"),
        (reply(b""), 415, "not supported"),
    ],
)
def test_what_is_no_image_of_bounded_size_in_bounded_time_is_refused(
    server: bytes | Handler, status: int, sentence: str
) -> None:
    refused(fetch({"/image": server}, remote_timeout_s=0.5)[0], status, sentence)


def test_memory_of_all_fetches_is_bounded() -> None:
    answer, _, _ = fetch({"/image": reply(png() + b"x" * 50_000)}, bodies_mb=0.01)
    assert isinstance(answer, ApiError)
    assert (answer.status, answer.retry_after_s) == (503, 1)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:password@images.example/",
        "ftp://images.example/x",
        "http://",
        "//images.example/x",
        "x" * 9000,
        "http://images.example\\@evil.example/x",
        "http://images.example%00/x",
        "http://[::1%25lo]/x",
    ],
)
def test_urls_of_another_kind_are_refused(url: str) -> None:
    async def run() -> None:
        with Budget(1).lease() as lease:
            await Fetcher(GatewaySettings(allowed_media_domains=("images.example",))).fetch("messages[0]", url, lease)

    with pytest.raises(ApiError) as error:
        anyio.run(run)
    refused(error.value, 400, "")
    assert "password@" not in error.value.message


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.100.100.200", "127.0.0.1", "168.63.129.16", "169.254.169.254", "172.16.0.1",
        "192.168.1.1", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1",
        "fd00:ec2::254", "fec0::1", "::7f00:1", "64:ff9b:1::a00:1",
        "fe80::1%eth0", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_allowed(address, [])


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_allowed(address, [])
