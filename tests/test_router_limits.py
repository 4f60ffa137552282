"""Limits, deadlines, cancelled clients and dying engines in the router, over fake stages."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.checkpoint import CHECKPOINT_FILE
from python_backends.deployment import BUILT_FILE
from python_backends.engines.protocol import Finish, Submission
from python_backends.errors import StageGone, Status, unavailable
from python_backends.router import channel
from python_backends.router.service import Router
from tests.fakes.stages import FakeStages, gif
from tests.routers import Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            tensors("x" * 64),
            "text_input: 65 prompt tokens (65 of text, 0 visual) leave no room for an answer within "
            "context_tokens = 64",
        ),
        (tensors("x" * 1000), "text_input: 1000 bytes of text are over the 768 that context_tokens = 64 can hold"),
        (
            {"messages": np.array([json.dumps([{"role": "user", "content": ""}] * 65).encode()], np.object_)},
            "messages: 65 parts are over context_tokens = 64",
        ),
        (
            tensors("x", *[gif(1)] * 8, sampling='{"max_tokens": 31}'),
            "max_tokens = 31 and 34 prompt tokens are over context_tokens = 64",
        ),
        (
            tensors("x", sampling='{"min_tokens": 63}'),
            "min_tokens = 63 and 2 prompt tokens are over context_tokens = 64",
        ),
    ],
)
def test_what_does_not_fit_the_context_is_refused_before_anything_is_encoded(
    artifacts: Path, arrays: dict[str, Any], sentence: str
) -> None:
    stages, client = FakeStages(), Recorder()
    run(artifacts, stages, lambda router: router.serve(arrays, "{}", client))
    assert client.error is not None
    assert sentence in client.error.message
    assert stages.embedded == []


def edit(file: Path, **changes: Any) -> None:
    """Change top-level values of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(("fusion", "third"), [("decoder_only", 1), ("cross_attention", 0)])
def test_replica_is_chosen_by_total_tokens_or_by_text_tokens_where_visual_ones_are_not_in_the_sequence(
    artifacts: Path, fusion: str, third: int
) -> None:
    edit(artifacts / CHECKPOINT_FILE, fusion=fusion)
    edit(artifacts / BUILT_FILE, pools={"text": {"replicas": 2}})
    stages = FakeStages()
    stages.hold_tokens.set()
    # 2 text and 12 visual tokens, then 8 text tokens; the third goes where less is pending
    sent = [tensors("x", gif(1), gif(2), gif(3)), tensors("x" * 7), tensors("y")]

    async def scenario(router: Router) -> None:
        for number, arrays in enumerate(sent, 1):
            asyncio.create_task(router.serve(arrays, "{}", Recorder()))  # noqa: RUF006  (ends with the router)
            while len(stages.submissions) < number:
                await asyncio.sleep(0.001)

    run(artifacts, stages, scenario)
    assert stages.replicas == [0, 1, third]


def test_visual_tokens_take_no_room_in_the_context_of_a_cross_attention_model(artifacts: Path) -> None:
    edit(artifacts / CHECKPOINT_FILE, fusion="cross_attention")
    stages, client = FakeStages(), Recorder()
    arrays = tensors("x" * 40, *[gif(1)] * 8)  # 41 text and 32 visual tokens, where 64 fit
    run(artifacts, stages, lambda router: router.serve(arrays, "{}", client))
    assert client.error is None
    assert client.text == "ok"


def test_client_that_goes_away_frees_its_sequence(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        serving = asyncio.create_task(router.serve(tensors("Q", stream=True), "{}", client))
        while not stages.submissions:
            await asyncio.sleep(0.001)
        stages.report(stages.submissions[0].request_id, [65], Finish.RUNNING)
        await client.first.wait()
        client.gone = True
        await serving
        while not stages.cancelled:
            await asyncio.sleep(0.001)

    run(artifacts, stages, scenario)
    assert client.error is not None
    assert client.error.status is Status.CANCELLED
    assert stages.cancelled == [stages.submissions[0].request_id]


def test_stream_goes_on_after_its_last_token_when_the_engine_dies_once(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        arrays = tensors("Q", gif(1), stream=True, sampling='{"max_tokens": 5, "min_tokens": 4}')
        serving = asyncio.create_task(router.serve(arrays, "{}", client))
        while not stages.submissions:
            await asyncio.sleep(0.001)
        stages.report(stages.submissions[0].request_id, list(b"ab"), Finish.RUNNING)
        await client.first.wait()
        stages.detach(unavailable("llm_decoder_0: gone"))
        while len(stages.submissions) < 2:
            await asyncio.sleep(0.001)
        stages.report(stages.submissions[1].request_id, list(b"cde"), Finish.LENGTH)
        await serving

    run(artifacts, stages, scenario)
    first, second = stages.submissions
    assert client.text == "abcde"
    assert client.error is None
    assert second.tokens.tolist() == [*first.tokens.tolist(), *b"ab"]
    assert (second.sampling.max_tokens, second.sampling.min_tokens) == (3, 2)
    assert second.request_id != first.request_id
    assert stages.visual_values[0] == stages.visual_values[1] != []


def test_stream_goes_on_with_another_replica_when_the_model_of_its_own_is_gone(artifacts: Path) -> None:
    edit(artifacts / BUILT_FILE, pools={"text": {"replicas": 2}})
    stages, client = FakeStages(), Recorder()
    stages.hold_tokens.set()

    def lose_the_first(_: Submission) -> None:
        if stages.replicas[-1] == 0:
            raise StageGone("llm_decoder_0: gone")

    stages.on_submit = lose_the_first

    async def scenario(router: Router) -> None:
        serving = asyncio.create_task(router.serve(tensors("Q", gif(1)), "{}", client))
        while len(stages.submissions) < 2:
            await asyncio.sleep(0.001)
        stages.report(stages.submissions[1].request_id, list(b"ab"), Finish.STOP)
        await serving

    run(artifacts, stages, scenario)
    assert stages.replicas == [0, 1]
    assert client.error is None
    assert client.text == "ab"
    assert stages.embedded == [1]


def test_replica_that_falls_silent_with_a_call_in_it_holds_up_nobody_once_it_is_back(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SILENCE_S", 1.5)  # on a machine that is busy with others too
    stages, client = FakeStages(), Recorder()
    stages.hush.set()
    back = threading.Event()

    def stop(_: Submission) -> None:
        if len(stages.submissions) == 1:
            assert back.wait(20)

    stages.on_submit = stop

    async def scenario(router: Router) -> None:
        await router.serve(tensors("Q"), "{}", client)
        back.set()

    run(artifacts, stages, scenario)
    assert client.error is None
    assert client.text == "ok"
    assert len(stages.submissions) == 2


def test_engine_that_dies_twice_is_one_clear_error_and_the_next_request_is_served(artifacts: Path) -> None:
    stages, lost, after = FakeStages(), Recorder(), Recorder()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        serving = asyncio.create_task(router.serve(tensors("Q"), "{}", lost))
        for death in (1, 2):
            while len(stages.submissions) < death:
                await asyncio.sleep(0.001)
            stages.detach(unavailable("llm_decoder_0: gone"))
        await serving
        stages.hold_tokens.clear()
        await router.serve(tensors("Q"), "{}", after)

    run(artifacts, stages, scenario)
    assert lost.error is not None
    assert lost.error.status is Status.UNAVAILABLE
    assert lost.error.message == "llm_decoder_0: gone"
    assert after.text == "ok"


def test_image_whose_worker_died_is_encoded_again_once(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    deaths = iter([unavailable("vision_encoder: the worker process ended with signal 9")])

    def die_once(image: int) -> None:
        death = next(deaths, None)
        if death:
            raise death

    stages.on_embed = die_once
    run(artifacts, stages, lambda router: router.serve(tensors("q", gif(1)), "{}", client))
    assert client.text == "ok"
    assert stages.embedded == [1]


def test_deadline_that_passes_ends_the_request_and_frees_its_sequence(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        await router.serve(tensors("Q"), '{"deadline_ms": 100, "triton_enable_empty_final_response": true}', client)
        while not stages.cancelled:
            await asyncio.sleep(0.001)

    run(artifacts, stages, scenario)
    assert client.error is not None
    assert client.error.status is Status.UNAVAILABLE
    assert client.error.message == "deadline_ms: the answer was not complete within 100 ms"
    assert stages.cancelled == [stages.submissions[0].request_id]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            '{"priority_class": "urgent"}',
            "parameters: key 'priority_class' = 'urgent': input should be 'interactive', ",
        ),
        ('{"deadline_ms": -1}', "parameters: key 'deadline_ms' = -1: input should be greater than 0"),
    ],
)
def test_bad_request_parameter_is_refused_by_name(artifacts: Path, parameters: str, sentence: str) -> None:
    client = Recorder()
    run(artifacts, FakeStages(), lambda router: router.serve(tensors("Q"), parameters, client))
    assert client.error is not None
    assert client.error.status is Status.INVALID_ARG
    assert client.error.message.startswith(sentence)


def test_full_queue_is_refused_at_once_with_the_limit(artifacts: Path) -> None:
    built = artifacts / BUILT_FILE
    deployment = json.loads(built.read_text())
    deployment["scheduler"]["classes"]["text"]["queue_limit"] = 1
    built.write_text(json.dumps(deployment))
    stages = FakeStages()
    stages.hold_tokens.set()
    clients = [Recorder() for _ in range(4)]

    async def scenario(router: Router) -> None:
        tasks = [asyncio.create_task(router.serve(tensors("Q"), "{}", client)) for client in clients]
        await tasks[3]  # two run, one waits
        while len(stages.submissions) < 3:
            await asyncio.sleep(0.001)
            for submission in stages.submissions:
                stages.report(submission.request_id, [65], Finish.STOP)
        stages.report(stages.submissions[2].request_id, [65], Finish.STOP)
        await asyncio.gather(*tasks)

    run(artifacts, stages, scenario)
    assert clients[3].error is not None
    assert clients[3].error.status is Status.UNAVAILABLE
    assert "1 text requests wait already (limit scheduler.classes.text.queue_limit = 1)" in clients[3].error.message
    assert [client.text for client in clients[:3]] == ["A"] * 3


def test_no_more_sequences_run_than_the_limit(artifacts: Path) -> None:
    stages = FakeStages()
    stages.hold_tokens.set()
    clients = [Recorder() for _ in range(5)]

    async def scenario(router: Router) -> None:
        tasks = [asyncio.create_task(router.serve(tensors("Q"), "{}", client)) for client in clients]
        done = 0
        while done < len(clients):
            while len(stages.submissions) == done:
                await asyncio.sleep(0.001)
            assert len(stages.submissions) - done <= 2
            stages.report(stages.submissions[done].request_id, [65], Finish.STOP)
            done += 1
        await asyncio.gather(*tasks)

    run(artifacts, stages, scenario)
    assert [client.text for client in clients] == ["A"] * 5
