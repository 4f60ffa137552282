"""A request's life in the router, over fake stages."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, parse_deployment
from python_backends.engines.protocol import VISUAL_TOKEN, Finish
from python_backends.errors import ServingError, Status, unavailable
from python_backends.metrics import ALL, Metric, document
from python_backends.router.answer import Piece
from python_backends.router.service import Router
from tests.fakes.stages import BROKEN, HIDDEN, TOKENS, FakeStages, gif
from tests.fakes.tokenizer import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else '<image>' }}"
    "{% endfor %}{% endfor %}:"
)


class Recorder:
    """A client that keeps what it is sent."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.error: ServingError | None = None
        self.gone = False
        self.first = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def send(self, piece: Piece, last: bool) -> None:
        self.pieces.append(piece)
        self.first.set()

    def fail(self, error: ServingError) -> None:
        self.error = error

    def is_cancelled(self) -> bool:
        return self.gone


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    checkpoint = Checkpoint(
        name="fake", image_size=8, tokens_per_tile=TOKENS, hidden_size=HIDDEN, vocab_size=258, kv_bytes_per_token=1,
        context_tokens=64,
        image_token="<image>", eos_token_ids=(257,),
    )  # fmt: skip
    limits = {"context_tokens": 64, "default_max_tokens": 16}
    deployment = parse_deployment({"checkpoint": "x", "limits": limits, "pools": {"text": {"max_running": 2}}}, "test")
    (tmp_path / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (tmp_path / BUILT_FILE).write_text(deployment.model_dump_json())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


class Counts:
    """A metrics registry that keeps what it is given."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], list[float]] = {}

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        assert sorted(labels) == sorted(metric.labels)
        self.values.setdefault((metric.name, *labels.values()), []).append(value)

    def last(self, *series: str) -> float:
        """The newest value of a gauge, 0 before the first."""
        return self.values.get(series, [0.0])[-1]


def run(
    artifacts: Path,
    stages: FakeStages,
    scenario: Callable[[Router], Awaitable[None]],
    registry: Counts | None = None,
) -> None:
    async def main() -> None:
        router = Router(stages, artifacts, registry or Counts())
        try:
            await asyncio.wait_for(scenario(router), 20)
        finally:
            stages.detach()
            router.close()

    asyncio.run(main())


def tensors(text: str, *images: bytes, **flags: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {"text_input": np.array([text.encode()], np.object_)}
    if images:
        arrays["image"] = np.array(images, np.object_)
    if "sampling" in flags:
        arrays["sampling_parameters"] = np.array([flags.pop("sampling").encode()], np.object_)
    return arrays | {name: np.array([value]) for name, value in flags.items()}


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
    entered, go_on = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        entered.set()
        assert go_on.wait(10)

    stages.on_embed = hold

    async def scenario(router: Router) -> None:
        first = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", gone))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", stays))
        gone.gone = True
        await first
        go_on.set()
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


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            tensors("x" * 64),
            "text_input: 65 prompt tokens (65 of text, 0 visual) leave no room for an answer within "
            "context_tokens = 64",
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
