"""Large bodies are parsed beside the gateway's event loop: others are answered meanwhile. In one process, no server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx2
import pytest

from gateway import routes
from gateway.app import create_app
from gateway.interruption import Connection
from gateway.settings import GatewaySettings
from python_backends.lifting import Lifted

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_500_000}}
LARGE = {"model": "vlm", "messages": [{"role": "user", "content": [PICTURE]}]}


def test_others_are_answered_while_large_bodies_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    others_are_done, lifted = threading.Event(), routes.lifted

    def wait(body: bytearray, settings: GatewaySettings) -> Lifted:
        assert len(body) < 1_000_000 or others_are_done.wait(15), "nobody was answered meanwhile"
        return lifted(body, settings)

    monkeypatch.setattr(routes, "lifted", wait)
    app = create_app(GatewaySettings(servers=("grpc://127.0.0.1:9",)))

    async def scenario() -> tuple[list[int], list[int]]:

        async def served(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = {"connection": Connection()}  # as gateway.protocol does
            await app(scope, receive, send)

        transport = httpx2.ASGITransport(served)
        async with app.state.gateway.connected(), httpx2.AsyncClient(transport=transport, base_url="http://x") as http:

            async def ask(body: object) -> int:
                return (await http.post("/v1/chat/completions", json=body, timeout=20)).status_code

            large = [asyncio.create_task(ask(LARGE)) for _ in range(4)]
            small = [await ask({"model": "other", "messages": [{"role": "user", "content": "Hi"}]}) for _ in range(3)]
            others_are_done.set()
            return small, await asyncio.gather(*large)

    assert asyncio.run(scenario()) == ([404] * 3, [503] * 4)  # no such model; no server is ready
