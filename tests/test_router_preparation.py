"""Large requests are prepared beside the event loop: others are answered meanwhile. Over fake stages."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from python_backends.errors import Status
from python_backends.media.limits import ImageLimits
from python_backends.router import fan_out
from python_backends.router.service import Router
from tests.fakes.stages import FakeStages, gif
from tests.routers import Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture

LARGE = gif(7) + bytes(300_000)


def test_others_are_answered_while_large_pictures_are_looked_at(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_are_done, unwrap = threading.Event(), fan_out.unwrap

    def wait(payload: bytes, limits: ImageLimits) -> bytes:
        assert len(payload) < len(LARGE) or others_are_done.wait(15), "nobody was answered meanwhile"
        return unwrap(payload, limits)

    monkeypatch.setattr(fan_out, "unwrap", wait)
    large, others = [Recorder() for _ in range(4)], [Recorder() for _ in range(3)]

    async def scenario(router: Router) -> None:
        tasks = [asyncio.create_task(router.serve(tensors("q", LARGE), "{}", client)) for client in large]
        await asyncio.gather(*(router.serve(tensors("q", gif(1)), "{}", client) for client in others))
        others_are_done.set()
        await asyncio.gather(*tasks)

    run(artifacts, FakeStages(), scenario)
    assert [client.text for client in [*others, *large]] == ["ok"] * 7


@pytest.mark.parametrize("leaves", ["deadline", "client"])
def test_a_request_that_is_over_while_it_waits_is_not_prepared(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    go_on, looked_at, unwrap = threading.Event(), list[bytes](), fan_out.unwrap

    def wait(payload: bytes, limits: ImageLimits) -> bytes:
        looked_at.append(payload)
        assert go_on.wait(15)
        return unwrap(payload, limits)

    monkeypatch.setattr(fan_out, "unwrap", wait)
    first, last = [Recorder() for _ in range(2)], Recorder()

    async def scenario(router: Router) -> None:
        tasks = [asyncio.create_task(router.serve(tensors("q", LARGE), "{}", client)) for client in first]
        while len(looked_at) < 2:  # both threads are taken
            await asyncio.sleep(0.001)
        last.gone = leaves == "client"
        parameters: dict[str, Any] = {"deadline": '{"deadline_ms": 50}', "client": "{}"}
        await router.serve(tensors("q", LARGE + b"last"), parameters[leaves], last)
        go_on.set()
        await asyncio.gather(*tasks)

    run(artifacts, FakeStages(), scenario)
    assert [client.text for client in first] == ["ok"] * 2
    assert last.error is not None
    assert looked_at == [LARGE] * 2


def test_an_empty_prompt_is_refused_under_the_name_of_its_text(artifacts: Path) -> None:
    bare, templated = Recorder(), Recorder()

    async def scenario(router: Router) -> None:
        await router.serve(tensors("", apply_chat_template=False), "{}", bare)
        await router.serve(tensors(""), "{}", templated)

    run(artifacts, FakeStages(), scenario)
    assert bare.error is not None
    assert bare.error.status is Status.INVALID_ARG
    assert bare.error.message.startswith("text_input: is empty")
    assert templated.text == "ok"
