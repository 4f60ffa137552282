"""/metrics of the real server, read with a Prometheus parser after requests that are known."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from client import VlmClient, VlmError
from client.serving.server import Endpoints
from python_backends.metrics import ALL
from tests.test_failures import worker_of
from tests.test_server import picture, statistics, until

pytestmark = pytest.mark.server


@pytest.fixture
def vlm(demo_server: Endpoints) -> Iterator[VlmClient]:
    with VlmClient(demo_server.grpc) as client:
        yield client


def families(server: Endpoints) -> dict[str, Family]:
    """The product's families, by name."""
    with urllib.request.urlopen(server.metrics, timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text) if family.name.startswith("tvlm_")}


class Snapshot:
    """Values of all series at one moment."""

    def __init__(self, server: Endpoints) -> None:
        self._samples = [sample for family in families(server).values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name with these labels; 0 while there is none."""
        return sum(s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items())


def settled(server: Endpoints) -> Snapshot:
    """When nothing runs: values are recorded beside the request path, and gauges ten times a second."""
    last: list[Snapshot] = []

    def is_still() -> bool:
        last.append(Snapshot(server))
        idle = all(last[-1](f"tvlm_{name}_requests") == 0 for name in ("waiting", "running"))
        return idle and len(last) > 5 and len({s("tvlm_output_tokens_total") for s in last[-5:]}) == 1

    assert until(is_still, 20)
    return last[-1]


def test_every_family_is_one_of_the_page_with_its_kind_and_labels(demo_server: Endpoints, vlm: VlmClient) -> None:
    vlm.generate("What is it?", images=[picture("red", size=131)], max_tokens=3)
    with pytest.raises(VlmError):
        vlm.generate("What is it?", max_tokens=0)
    settled(demo_server)
    known = {metric.name.removesuffix("_total"): metric for metric in ALL}
    shown = families(demo_server)
    assert shown.keys() <= known.keys()
    for name, family in shown.items():
        assert family.type == known[name].kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[name].labels)


def test_values_after_known_requests(demo_server: Endpoints, vlm: VlmClient) -> None:
    before = settled(demo_server)
    options = {"max_tokens": 6, "ignore_eos": True}
    text = vlm.generate("What is the capital of France?", **options)
    first = vlm.generate("What is it?", images=[picture("teal", size=132)], **options)
    again = vlm.generate("What colour is it?", images=[picture("teal", size=132)] * 2, **options)
    with pytest.raises(VlmError):
        vlm.generate("What is it?", images=[picture("red")] * 9)
    with pytest.raises(VlmError):
        vlm.generate("word " * 3000)
    assert until(lambda: Snapshot(demo_server)("tvlm_requests_total") >= before("tvlm_requests_total") + 5, 10)
    after = settled(demo_server)

    def rise(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert rise("tvlm_requests_total", modality="text", outcome="ok") == 1
    assert rise("tvlm_requests_total", modality="image", outcome="ok") == 2
    assert rise("tvlm_requests_total", outcome="INVALID_ARG") == 2
    assert rise("tvlm_refusals_total", reason="images_per_request") == 1
    assert rise("tvlm_refusals_total", reason="context_tokens") == 1
    for stage in ("time_to_first_token", "queue", "prefill", "time_per_output_token", "longest_token_gap"):
        assert rise(f"tvlm_{stage}_seconds_count", modality="text") == 1, stage
        assert rise(f"tvlm_{stage}_seconds_count", modality="image") == 2, stage
    for stage in ("decode", "encode"):
        assert rise(f"tvlm_{stage}_seconds_count", modality="text") == 0, stage
        assert rise(f"tvlm_{stage}_seconds_count", modality="image") == 2, stage
    assert rise("tvlm_encode_seconds_sum") == pytest.approx((first.timing.encode_ms or 0) / 1e3, rel=1e-3)
    assert rise("tvlm_output_tokens_total") == 18
    answers = (text, first, again)
    assert rise("tvlm_input_tokens_total") == sum(answer.usage.num_input_tokens for answer in answers)
    assert rise("tvlm_input_tokens_total", kind="visual") == 3 * 64
    assert rise("tvlm_prefix_cache_queries_total") == rise("tvlm_input_tokens_total")
    assert rise("tvlm_encoder_cache_queries_total") == 3
    assert rise("tvlm_encoder_cache_hits_total") == 2
    assert after("tvlm_embedding_pages", state="held") == 0
    assert rise("tvlm_embedding_pages", state="kept") == 4  # 64 tokens in pages of 16
    assert rise("tvlm_embedding_pages") == 0
    assert after("tvlm_kv_cache_usage_ratio") == 0
    assert after("tvlm_pending_tokens") == 0
    assert after("tvlm_encode_budget_tokens") > 0


def test_gauges_show_what_runs(demo_server: Endpoints, vlm: VlmClient) -> None:
    settled(demo_server)
    stream = vlm.stream("Tell me a very long story.", max_tokens=1500, ignore_eos=True)
    next(stream)
    assert until(lambda: Snapshot(demo_server)("tvlm_running_requests", modality="text") == 1, 10)
    assert until(lambda: Snapshot(demo_server)("tvlm_running_sequences", replica="0") == 1, 10)
    assert until(lambda: 0 < Snapshot(demo_server)("tvlm_kv_cache_usage_ratio", replica="0") <= 1, 10)
    stream.close()
    settled(demo_server)
    assert until(lambda: Snapshot(demo_server)("tvlm_kv_cache_usage_ratio") == 0, 10)


def test_same_picture_with_another_question_reuses_kv(demo_server: Endpoints, vlm: VlmClient) -> None:
    images = [picture("olive", size=size) for size in range(140, 146)]
    before = settled(demo_server)
    vlm.generate("What is shown here?", images=images, max_tokens=2)
    first = settled(demo_server)
    inferences, _ = statistics(demo_server, "vision_encoder")
    vlm.generate("And how many are there?", images=images, max_tokens=2)
    second = settled(demo_server)
    hits = [s("tvlm_prefix_cache_hits_total") for s in (before, first, second)]
    assert hits[2] - hits[1] >= 6 * 64 - 32  # whole blocks of 32 tokens
    assert hits[2] - hits[1] > hits[1] - hits[0]
    assert statistics(demo_server, "vision_encoder")[0] == inferences


def test_same_system_prompt_reuses_kv(demo_server: Endpoints, vlm: VlmClient) -> None:
    system = {"role": "system", "content": "You are the guide of a museum of clocks. " * 12}
    hits = []
    for question in ("When does it open?", "What does a ticket cost?"):
        before = settled(demo_server)("tvlm_prefix_cache_hits_total")
        vlm.generate(messages=[system, {"role": "user", "content": question}], max_tokens=2)
        hits.append(settled(demo_server)("tvlm_prefix_cache_hits_total") - before)
    assert hits[1] >= 96 > hits[0]


def test_replaced_worker_is_counted(demo_server: Endpoints, vlm: VlmClient) -> None:
    before = settled(demo_server)("tvlm_worker_restarts_total", stage="vision_encoder")
    worker_of("vision_encoder").send_signal(signal.SIGKILL)
    counted = {"stage": "vision_encoder"}
    assert until(lambda: Snapshot(demo_server)("tvlm_worker_restarts_total", **counted) == before + 1, 20)
    assert json.dumps(vlm.generate("What is it?", images=[picture("navy", size=150)], max_tokens=2).text)
