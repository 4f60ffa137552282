"""Fetches remote images without becoming anybody's way into the network behind the gateway.

Hosts come from the operator's list. Each hop's name is resolved once, every address checked, and the connection goes to
exactly those addresses, so that a second answer of the name server changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.addresses import is_allowed
from gateway.budget import Lease
from gateway.errors import ApiError, bad_request
from gateway.settings import GatewaySettings
from python_backends.media.sniff import accepted

MAX_REDIRECTS = 3
_MAX_URL = 8192
_USUAL_PORTS = (80, 443)
_REDIRECTS = (301, 302, 303, 307, 308)
# No compression: an image gains nothing by it, and a small body can't become a large one.
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "triton-vlm-gateway"}

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name (OSError)."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Fetcher:
    """Fetches images as the settings allow; `resolve` is the name service."""

    def __init__(self, settings: GatewaySettings, resolve: Resolve = resolve) -> None:
        self._settings = settings
        self._resolve = resolve
        self._networks = [ipaddress.ip_network(network) for network in settings.allowed_media_networks]

    async def fetch(self, field: str, address: str, lease: Lease) -> bytes:
        """The image file at a URL that stands in `field`; `lease` holds its bytes (ApiError, naming the field)."""
        if len(address) > _MAX_URL:
            raise bad_request(field, f"{field}: a URL of {len(address):,} characters is over the limit of {_MAX_URL:,}")
        limit_s = self._settings.remote_timeout_s
        try:
            with anyio.fail_after(limit_s):
                data = await self._follow(field, _parse(field, address), lease)
        except TimeoutError:
            raise _failed(field, f"the image did not come within remote_timeout_s = {limit_s:g}") from None
        if isinstance(problem := accepted(data), str):
            raise ApiError(415, f"{field}: {problem}", "unsupported_image_format", field)
        return data

    async def _follow(self, field: str, url: URL, lease: Lease) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check_host(field, url)
            answer = await self._get(field, url, await self._addresses(field, url), lease)
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise _failed(field, f"more than {MAX_REDIRECTS} redirects")

    def _check_host(self, field: str, url: URL) -> None:
        """On every hop: an allowed host may well redirect to another one."""
        host, port = (url.host or "").lower().rstrip("."), url.port
        for entry in self._settings.allowed_media_domains:
            domain, _, with_port = entry.lower().partition(":")
            ports = (int(with_port),) if with_port else _USUAL_PORTS
            if port in ports and (host == domain or host.endswith(f".{domain}")):
                return
        place = f"{host[:100]}:{port}" if port not in _USUAL_PORTS else host[:100]
        message = f"{field}: {place!r} is not among the hosts that images are fetched from (allowed_media_domains)"
        raise bad_request(field, message, "remote_image_not_allowed")

    async def _addresses(self, field: str, url: URL) -> list[str]:
        host, port = url.host or "", url.port or 443
        try:
            addresses = await self._resolve(host, port)
        except OSError:
            raise _failed(field, f"{host} has no address") from None
        if not addresses or not all(is_allowed(address, self._networks) for address in addresses):
            message = f"{field}: {host} has an address that images are not fetched from (allowed_media_networks)"
            raise bad_request(field, message, "remote_image_not_allowed")
        return addresses

    async def _get(self, field: str, url: URL, addresses: list[str], lease: Lease) -> bytes | URL:
        """The body, or where it is instead."""
        connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False, force_close=True)
        session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), headers=_HEADERS
        )
        try:
            async with session, session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and "Location" in response.headers:
                    return url.join(_parse(field, response.headers["Location"], relative=True))
                if response.status != 200:
                    raise _failed(field, f"{url.host} answered with status {response.status}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise _failed(field, f"{url.host} sent it compressed, which it was asked not to")
                return await self._read(field, response, lease)
        except aiohttp.ClientError as error:
            raise _failed(field, f"{url.host}: {type(error).__name__}") from None

    async def _read(self, field: str, response: aiohttp.ClientResponse, lease: Lease) -> bytes:
        limit = self._settings.max_image_bytes
        body = bytearray()
        self._check_size(field, response.content_length or 0, limit)
        async for chunk in response.content.iter_chunked(1 << 16):
            self._check_size(field, len(body) + len(chunk), limit)
            lease.take(len(chunk))
            body += chunk
        return bytes(body)

    def _check_size(self, field: str, size: int, limit: int) -> None:
        if size > limit:
            message = f"{field}: the image is over the limit of {limit:,} bytes (image_bytes_mb)"
            raise ApiError(413, message, "image_too_large", field)


class _Pinned(AbstractResolver):
    """Knows one answer."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """The addresses that were checked."""
        return [_result(host, address, port) for address in self._addresses]

    async def close(self) -> None:
        """Nothing to close."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags: Any = socket.AI_NUMERICHOST
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=flags)


def _parse(field: str, text: str, *, relative: bool = False) -> URL:
    try:
        url = URL(text)
        usable = (relative and not url.scheme) or (url.scheme in ("http", "https") and bool(url.host))
    except ValueError:
        usable = False
    if not usable or url.user is not None or url.password is not None:
        raise bad_request(field, f"{field}: must be a data: URI or an http(s) URL without a password in it")
    return url


def _failed(field: str, problem: str) -> ApiError:
    return ApiError(422, f"{field}: {problem}", "image_fetch_failed", field)
