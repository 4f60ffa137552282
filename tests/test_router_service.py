"""A request's life in the router, over fake stages."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.deployment import BUILT_FILE
from python_backends.engines.protocol import VISUAL_TOKEN
from python_backends.errors import Status
from python_backends.metrics import ALL, document
from python_backends.router.service import Router
from tests.fakes.stages import BROKEN, TOKENS, FakeStages, Hold, gif
from tests.routers import Counts, Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture


def test_text_request_is_answered_and_never_touches_the_vision_stages(artifacts: Path) -> None:
    stages, client = FakeStages(b"hello"), Recorder()
    run(artifacts, stages, lambda router: router.serve(tensors("Q", return_finish_reason=True), "{}", client))
    assert client.text == "hello"
    assert [piece.finish_reason for piece in client.pieces] == ["stop"]
    assert stages.embedded == []
    assert stages.submissions[0].tokens.tolist() == list(b"Q:")


def test_images_keep_their_order_whatever_order_they_are_ready_in(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    later = {1: threading.Event(), 2: threading.Event()}

    def wait_for_the_next(image: int) -> None:  # 3 is ready first, then 2, then 1
        if image in later:
            assert later[image].wait(10)
        before = {3: 2, 2: 1}.get(image)
        if before:
            later[before].set()

    stages.on_embed = wait_for_the_next
    run(
        artifacts,
        stages,
        lambda router: router.serve(tensors("a<image>b<image>c<image>", gif(1), gif(2), gif(3)), "{}", client),
    )
    assert client.error is None
    assert stages.embedded == [3, 2, 1]
    submission = stages.submissions[0]
    image = [VISUAL_TOKEN] * TOKENS
    assert submission.tokens.tolist() == [*b"a", *image, *b"b", *image, *b"c", *image, *b":"]
    assert stages.visual_values[0] == [1.0] * TOKENS + [2.0] * TOKENS + [3.0] * TOKENS


def test_first_token_is_due_by_the_slo_of_the_class_the_pictures_or_the_request_itself(artifacts: Path) -> None:
    built = json.loads((artifacts / BUILT_FILE).read_text())
    built["scheduler"]["classes"]["text"]["ttft_slo_ms"] = 1500
    built["scheduler"]["classes"]["image"].update(ttft_slo_ms=1000, ttft_slo_per_image_ms=5000)
    (artifacts / BUILT_FILE).write_text(json.dumps(built))
    stages = FakeStages()

    async def scenario(router: Router) -> None:
        await router.serve(tensors("Q"), "{}", Recorder())
        await router.serve(tensors("Q", gif(1), gif(2)), "{}", Recorder())
        await router.serve(tensors("Q", gif(1)), '{"priority_class": "interactive"}', Recorder())
        await router.serve(tensors("Q", gif(1)), '{"ttft_slo_ms": 700}', Recorder())

    begin = time.monotonic()
    run(artifacts, stages, scenario)
    took_s = time.monotonic() - begin
    for submission, slo_s in zip(stages.submissions, (1.5, 11.0, 3.0, 0.7), strict=True):
        assert slo_s <= submission.due_s - begin <= slo_s + took_s


def test_bad_image_fails_its_request_with_its_index_and_no_other(artifacts: Path) -> None:
    stages, bad, good = FakeStages(), Recorder(), Recorder()

    async def scenario(router: Router) -> None:
        await asyncio.gather(
            router.serve(tensors("q", gif(1), gif(BROKEN)), "{}", bad),
            router.serve(tensors("q", gif(2)), "{}", good),
        )

    run(artifacts, stages, scenario)
    assert bad.error is not None
    assert bad.error.message == "image[1]: it can't be decoded"
    assert bad.error.status is Status.INVALID_ARG
    assert good.text == "ok"


def test_what_a_header_says_is_refused_before_anything_is_encoded(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    run(artifacts, stages, lambda router: router.serve(tensors("q", gif(1), b"<svg/>"), "{}", client))
    assert client.error is not None
    assert client.error.message.startswith("image[1]: SVG is not supported (accepted: JPEG, PNG, ")
    assert stages.embedded == []


def test_same_picture_is_encoded_once_at_the_same_time_or_later_and_in_any_wrapping(artifacts: Path) -> None:
    stages, clients = FakeStages(), [Recorder() for _ in range(4)]

    async def scenario(router: Router) -> None:
        again = base64.b64encode(gif(1))
        await asyncio.gather(
            router.serve(tensors("q", gif(1), gif(1), gif(2)), "{}", clients[0]),
            router.serve(tensors("q", again), "{}", clients[1]),
        )
        await router.serve(tensors("q", gif(2), gif(1), return_timing=True), "{}", clients[2])

    run(artifacts, stages, scenario)
    assert sorted(stages.embedded) == [1, 2]
    assert [client.text for client in clients[:3]] == ["ok"] * 3
    assert stages.visual_values[2] == [2.0] * TOKENS + [1.0] * TOKENS
    timing = clients[2].pieces[-1].timing
    assert timing is not None
    assert (timing.decode_ms, timing.encode_ms) == (0.0, 0.0)


def test_client_that_goes_away_takes_nothing_from_another_with_the_same_picture(artifacts: Path) -> None:
    stages, gone, stays = FakeStages(), Recorder(), Recorder()
    stages.on_embed = hold = Hold()

    async def scenario(router: Router) -> None:
        first = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", gone))
        await hold.entered()
        second = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", stays))
        gone.gone = True
        await first
        hold.go_on()
        await second

    run(artifacts, stages, scenario)
    assert gone.error is not None
    assert gone.error.status is Status.CANCELLED
    assert stays.text == "ok"
    assert stages.embedded == [1]


def test_sequence_that_the_engine_refuses_fails_alone(artifacts: Path) -> None:
    stages, refused, good = FakeStages(), Recorder(), Recorder()

    async def scenario(router: Router) -> None:
        await asyncio.gather(
            router.serve(tensors("q", sampling=f'{{"seed": {BROKEN}}}'), "{}", refused),
            router.serve(tensors("q"), "{}", good),
        )

    run(artifacts, stages, scenario)
    assert refused.error is not None
    assert (refused.error.status, refused.error.message) == (Status.INVALID_ARG, "sampling_parameters: no")
    assert good.text == "ok"


def test_stream_sends_pieces_and_figures_with_the_last_one(artifacts: Path) -> None:
    stages, client = FakeStages(b"abc"), Recorder()
    arrays = tensors(
        "Q",
        gif(1),
        stream=True,
        return_timing=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        return_num_visual_tokens=True,
    )
    run(artifacts, stages, lambda router: router.serve(arrays, "{}", client))
    assert "".join(piece.text for piece in client.pieces) == "abc"
    last = client.pieces[-1]
    assert (last.num_input_tokens, last.num_output_tokens, last.finish_reason) == (TOKENS + 2, 3, None)
    assert last.num_visual_tokens == TOKENS
    assert last.timing is not None
    assert (last.timing.decode_ms, last.timing.encode_ms, last.timing.prefill_ms) == (1.0, 2.0, 1.5)
    assert last.timing.first_token_ms <= last.timing.total_ms


def test_stop_string_ends_the_sequence_in_the_engine_too(artifacts: Path) -> None:
    stages, client = FakeStages(b"one END two"), Recorder()
    arrays = tensors("Q", return_finish_reason=True, sampling='{"stop": "END"}')
    run(artifacts, stages, lambda router: router.serve(arrays, "{}", client))
    assert client.text == "one "
    assert client.pieces[-1].finish_reason == "stop"


def test_prompt_is_echoed_on_request(artifacts: Path) -> None:
    client = Recorder()
    run(artifacts, FakeStages(), lambda r: r.serve(tensors("Q", gif(1), exclude_input_in_output=False), "{}", client))
    assert client.text == "<image>Q:ok"


def test_a_request_is_one_log_line_with_its_id(artifacts: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="python_backends.router.record")
    run(artifacts, FakeStages(), lambda router: router.serve(tensors("Q"), "{}", Recorder("req_1" * 100)))
    (line,) = caplog.messages
    assert json.loads(line)["request_id"] == "req_1" * 16


def test_requests_are_counted_by_modality_and_outcome(artifacts: Path) -> None:
    counts = Counts()

    async def scenario(router: Router) -> None:
        await router.serve(tensors("Q"), "{}", Recorder())
        await router.serve(tensors("Q", gif(1)), "{}", Recorder())
        await router.serve(tensors("Q", gif(BROKEN)), "{}", Recorder())
        await router.serve({}, "{}", Recorder())

    run(artifacts, FakeStages(b"abc"), scenario, counts)
    outcomes = {key[1:]: len(v) for key, v in counts.values.items() if key[0] == "tvlm_requests_total"}
    assert outcomes == {
        ("text", "ok"): 1,
        ("image", "ok"): 1,
        ("image", "INVALID_ARG"): 1,
        ("unknown", "INVALID_ARG"): 1,
    }
    assert counts.values[("tvlm_output_tokens_total",)] == [3, 3]
    assert counts.values[("tvlm_encode_seconds", "image")] == [0.002]
    assert ("tvlm_encode_seconds", "text") not in counts.values


def test_page_of_metrics_is_the_code_s() -> None:
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    assert page == document()
    assert len({metric.name for metric in ALL}) == len(ALL)


def stop() -> dict[str, Any]:
    return {"stop": np.array([True])}


def test_stop_ends_the_requests_with_its_id_and_no_other(artifacts: Path) -> None:
    stages = FakeStages()
    stages.on_embed = hold = Hold()
    named, unnamed, other = [Recorder("a"), Recorder("a")], Recorder(), Recorder("b")
    stopping, again, nameless, laden = Recorder("a"), Recorder("a"), Recorder(), Recorder("b")

    async def scenario(router: Router) -> None:
        clients = [*named, unnamed, other]
        running = [asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", client)) for client in clients]
        await hold.entered()
        await router.serve(stop(), "{}", stopping)
        assert all(client.error is not None and client.error.status is Status.CANCELLED for client in named)
        await router.serve(stop(), "{}", again)  # nothing has that id now
        await router.serve(stop(), "{}", nameless)
        await router.serve(tensors("q") | stop(), "{}", laden)
        hold.go_on()
        await asyncio.gather(*running)

    run(artifacts, stages, scenario)
    assert [len(client.pieces) for client in (stopping, again)] == [1, 1]
    assert nameless.error is not None
    assert nameless.error.status is Status.INVALID_ARG
    assert nameless.error.message.startswith("stop: ")
    assert laden.error is not None
    assert laden.error.message == "stop: true goes alone; text_input came with it"
    assert (unnamed.text, other.text) == ("ok", "ok")


def test_a_request_that_is_stopped_before_it_begins_is_answered(artifacts: Path) -> None:
    early, stopping = Recorder("a"), Recorder("a")

    async def scenario(router: Router) -> None:
        await asyncio.gather(router.serve(tensors("q"), "{}", early), router.serve(stop(), "{}", stopping))

    counts = Counts()
    run(artifacts, FakeStages(), scenario, counts)
    assert early.error is not None
    assert early.error.status is Status.CANCELLED
    assert counts.values["tvlm_requests_total", "unknown", "CANCELLED"] == [1]
    assert len(stopping.pieces) == 1
