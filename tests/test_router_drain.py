"""The router told to drain: what is refused, what goes on, what is cut off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from python_backends.deployment import BUILT_FILE
from python_backends.engines.protocol import Finish
from python_backends.errors import Status
from python_backends.router.drain import CONTROL_VARIABLE, DrainOrder
from python_backends.router.service import Router
from tests.fakes.stages import TOKENS, FakeStages, Hold, gif
from tests.routers import Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrainOrder:
    folder = tmp_path / "control"
    monkeypatch.setenv(CONTROL_VARIABLE, str(folder))
    given = DrainOrder(folder)
    given.open()
    return given


async def until_done(order: DrainOrder) -> None:
    while not order.is_done:
        await asyncio.sleep(0.001)


def refused(client: Recorder) -> str:
    assert client.error is not None
    assert client.error.status is Status.UNAVAILABLE
    return client.error.message


def test_what_runs_is_answered_and_what_comes_or_waits_for_encode_is_refused(
    artifacts: Path, order: DrainOrder
) -> None:
    built = artifacts / BUILT_FILE
    deployment = json.loads(built.read_text())
    deployment["scheduler"]["encode_budget_tokens"] = TOKENS  # one picture at a time
    built.write_text(json.dumps(deployment))
    stages = FakeStages()
    stages.hold_tokens.set()
    running, waiting, late = Recorder(), Recorder(), Recorder()
    stages.on_embed = hold = Hold()

    async def scenario(router: Router) -> None:
        text = asyncio.create_task(router.serve(tensors("Q"), "{}", running))
        first = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", Recorder()))
        await hold.entered()
        while not stages.submissions:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(router.serve(tensors("q", gif(2)), "{}", waiting))
        await asyncio.sleep(0)
        order.give(20.0)
        await second
        await router.serve(tensors("Q"), "{}", late)
        assert not order.is_done
        hold.go_on()
        while len(stages.submissions) < 2:  # the picture that was being encoded goes on
            await asyncio.sleep(0.001)
        for submission in stages.submissions:
            stages.report(submission.request_id, [65], Finish.STOP)
        await asyncio.gather(text, first)
        await until_done(order)

    run(artifacts, stages, scenario)
    assert running.text == "A"
    assert refused(waiting) == refused(late) == "draining: this server is about to stop; ask another one"
    assert stages.embedded == [1]


def test_what_is_not_finished_within_the_grace_time_is_one_clear_error(artifacts: Path, order: DrainOrder) -> None:
    stages, client = FakeStages(), Recorder()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        task = asyncio.create_task(router.serve(tensors("Q"), "{}", client))
        while not stages.submissions:
            await asyncio.sleep(0.001)
        order.give(0.1)
        await task
        await until_done(order)
        while not stages.cancelled:
            await asyncio.sleep(0.001)

    run(artifacts, stages, scenario)
    assert refused(client) == "draining: the answer was not complete within the grace time of 0.1 s"
