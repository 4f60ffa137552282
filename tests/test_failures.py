"""Real processes killed and stopped: what clients see of it."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from client import VlmClient
from client.serving.probes import Probes
from client.serving.server import Endpoints
from tests.test_server import picture, until

pytestmark = pytest.mark.server

STORY = "Tell me a long story about a fox."


@pytest.fixture
def vlm(demo_server: Endpoints) -> Iterator[VlmClient]:
    with VlmClient(demo_server.grpc) as client:
        yield client


def worker_of(model: str) -> psutil.Process:
    """The worker process behind the (first) stub of a model."""
    ours = psutil.Process().children(recursive=True)
    stubs = [p for p in ours if f"/{model}/1/model.py" in " ".join(p.cmdline())]
    return next(child for stub in stubs for child in stub.children())


def metric(server: Endpoints, name: str, **labels: str) -> float:
    """One sample of /metrics, 0 while there is none."""
    with urllib.request.urlopen(server.metrics, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [s for family in families for s in family.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


@pytest.mark.parametrize(
    ("blow", "sampling"),
    [
        (signal.SIGKILL, {}),
        (signal.SIGSTOP, {}),
        (signal.SIGKILL, {"temperature": 1.0, "seed": 7}),
        (signal.SIGKILL, {"presence_penalty": 1.5}),
    ],
)
def test_stream_goes_on_after_its_last_token_when_the_engine_is_killed_or_stopped(
    demo_server: Endpoints, vlm: VlmClient, blow: signal.Signals, sampling: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, **sampling}
    undisturbed = vlm.generate(STORY, **options).text
    retries = metric(demo_server, "tvlm_retries_total", stage="decode")
    stream = vlm.stream(STORY, **options)
    pieces = [next(stream) for _ in range(5)]
    worker_of("llm_decoder_0").send_signal(blow)
    pieces += stream
    assert "".join(pieces) == undisturbed
    assert stream.answer.usage.num_output_tokens == 30
    assert until(lambda: metric(demo_server, "tvlm_retries_total", stage="decode") == retries + 1, 10)


@pytest.mark.parametrize("stage", ["image_decode", "vision_encoder"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_image_requests_are_answered_although_a_stage_is_killed_or_stopped_under_them(
    demo_server: Endpoints, stage: str, blow: signal.Signals
) -> None:
    first = {"image_decode": 300, "vision_encoder": 400}[stage] + blow  # no picture twice: it would be cached

    def ask(number: int) -> str:
        with VlmClient(demo_server.grpc) as client:
            image = picture("red", size=first + 20 * number)
            return client.generate("What is it?", images=[image], max_tokens=4).text

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, number) for number in range(10)]
        answers[3].result()
        worker_of(stage).send_signal(blow)
        assert all(isinstance(answer.result(timeout=120), str) for answer in answers)


def test_stubs_of_all_stages_answer_the_health_inference_well(demo_server: Endpoints) -> None:
    models = ("vlm", "image_decode", "vision_encoder", "llm_decoder_0")
    probes = Probes(demo_server.http, lambda model: 2.0)

    def ended(kind: str) -> list[int]:
        with urllib.request.urlopen(f"{demo_server.http}/v2/models/stats", timeout=10) as answer:
            stats = {
                model["name"]: model["inference_stats"][kind]["count"] for model in json.load(answer)["model_stats"]
            }
        return [stats[model] for model in models]

    well, ill = ended("success"), ended("fail")

    def all_answered() -> bool:
        assert probes.look(models) == {}
        return all(now > before for now, before in zip(ended("success"), well, strict=True))

    assert until(all_answered, 30)
    assert ended("fail") == ill


def test_metrics_are_on_tritons_own_endpoint(demo_server: Endpoints, vlm: VlmClient) -> None:
    before = metric(demo_server, "tvlm_requests_total", modality="image", outcome="ok")
    tokens = metric(demo_server, "tvlm_output_tokens_total")
    answer = vlm.generate("What is it?", images=[picture("red")], max_tokens=5, ignore_eos=True)
    assert answer.usage.num_output_tokens == 5
    # values are recorded beside the request path: those of earlier tests may still come in, and ours a little later
    counted = {"modality": "image", "outcome": "ok"}
    assert until(lambda: metric(demo_server, "tvlm_requests_total", **counted) >= before + 1, 10)
    assert until(lambda: metric(demo_server, "tvlm_output_tokens_total") >= tokens + 5, 10)
    assert metric(demo_server, "tvlm_time_to_first_token_seconds_count", modality="image") >= 1
    assert metric(demo_server, "tvlm_encode_budget_tokens") > 0
