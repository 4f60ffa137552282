"""The router and the embedding pool: eviction, pages given back, what is too large."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from python_backends.checkpoint import CHECKPOINT_FILE
from python_backends.deployment import BUILT_FILE
from python_backends.engines.protocol import Finish
from python_backends.errors import Status, unavailable
from python_backends.router.service import Router
from tests.fakes.stages import BROKEN, FakeStages, gif
from tests.routers import Counts, Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture


def with_cache(artifacts: Path, encoder_mb: int, tokens: int, hidden: int) -> None:
    """Another pool, and images of another number of tokens."""
    for name, section, values in (
        (BUILT_FILE, "cache", {"encoder_mb": encoder_mb}),
        (CHECKPOINT_FILE, None, {"tokens_per_tile": tokens, "hidden_size": hidden, "context_tokens": 8192}),
        (BUILT_FILE, "limits", {"context_tokens": 8192}),
    ):
        content = json.loads((artifacts / name).read_text())
        (content[section] if section else content).update(values)
        (artifacts / name).write_text(json.dumps(content))


def test_pool_too_small_for_the_working_set_answers_everything_by_eviction(artifacts: Path) -> None:
    with_cache(artifacts, encoder_mb=1, tokens=512, hidden=256)  # room for four images
    stages, counts = FakeStages(), Counts()
    stages.tokens, stages.hidden = 512, 256
    clients = [Recorder() for _ in range(12)]

    async def scenario(router: Router) -> None:
        for first in (0, 4, 8):
            group = range(first, first + 4)
            await asyncio.gather(*(router.serve(tensors("q", gif(i + 1), gif(i + 2)), "{}", clients[i]) for i in group))
        for _ in range(2):
            await router.serve(tensors("q", gif(40)), "{}", Recorder())

    run(artifacts, stages, scenario, counts)
    assert [client.text for client in clients] == ["ok"] * 12
    asked = [[float(i + 1)] * 512 + [float(i + 2)] * 512 for i in range(12)]
    assert sorted(stages.visual_values[:12]) == asked
    assert sum(counts.values[("tvlm_embedding_evictions_total",)]) >= 8
    assert counts.values[("tvlm_embedding_pages", "held")][-1] == 0
    assert counts.values[("tvlm_encoder_cache_hits_total",)][-1] == 1  # and still is a cache


def test_images_travel_copied_while_all_pages_are_held(artifacts: Path) -> None:
    with_cache(artifacts, encoder_mb=1, tokens=2048, hidden=256)  # room for one image
    stages, client = FakeStages(), Recorder()
    stages.tokens, stages.hidden = 2048, 256
    run(artifacts, stages, lambda router: router.serve(tensors("q", gif(1), gif(2)), "{}", client))
    assert client.text == "ok"
    assert stages.visual_values == [[1.0] * 2048 + [2.0] * 2048]
    assert len(stages.submissions[0].visuals.copied) == 4096


def test_image_larger_than_the_pool_is_refused_by_the_setting(artifacts: Path) -> None:
    with_cache(artifacts, encoder_mb=1, tokens=2049, hidden=256)
    client = Recorder()
    run(artifacts, FakeStages(), lambda router: router.serve(tensors("q", gif(1)), "{}", client))
    assert client.error is not None
    assert client.error.status is Status.INVALID_ARG
    assert client.error.message == "image[0]: 2049 visual tokens are over the 2048 of cache.encoder_mb = 1"


def test_failed_and_cancelled_requests_give_their_pages_back(artifacts: Path) -> None:
    stages, counts = FakeStages(), Counts()
    stages.hold_tokens.set()
    broken, gone = Recorder(), Recorder()

    async def scenario(router: Router) -> None:
        await router.serve(tensors("q", gif(1), gif(BROKEN)), "{}", broken)
        serving = asyncio.create_task(router.serve(tensors("q", gif(1), gif(2)), "{}", gone))
        while not stages.submissions or counts.last("tvlm_embedding_pages", "held") == 0:
            await asyncio.sleep(0.001)
        gone.gone = True
        await serving

    run(artifacts, stages, scenario, counts)
    assert broken.error is not None
    assert counts.last("tvlm_embedding_pages", "held") == 0


def test_engine_s_figures_and_classes_become_metrics(artifacts: Path) -> None:
    stages, counts = FakeStages(b"abc"), Counts()
    stages.hold_tokens.set()

    async def scenario(router: Router) -> None:
        serving = asyncio.create_task(router.serve(tensors("q", gif(1)), "{}", Recorder()))
        while not stages.submissions:
            await asyncio.sleep(0.001)
        stages.report(stages.submissions[0].request_id, [65], Finish.RUNNING)
        while counts.last("tvlm_kv_cache_usage_ratio", "0") == 0:
            await asyncio.sleep(0.001)
        assert counts.last("tvlm_running_requests", "image") == 1
        stages.report(stages.submissions[0].request_id, [66], Finish.STOP)
        await serving
        while counts.last("tvlm_running_requests", "image") == 1:
            await asyncio.sleep(0.001)

    run(artifacts, stages, scenario, counts)
    assert counts.last("tvlm_kv_cache_usage_ratio", "0") == 0.25
    assert counts.values[("tvlm_prefix_cache_queries_total", "0")] == [6, 6]
    assert counts.values[("tvlm_prefix_cache_hits_total", "0")] == [2, 2]
    assert (counts.last("tvlm_engine_waiting_sequences", "0"), counts.last("tvlm_engine_step_seconds", "0")) == (3, 0.5)
    assert counts.last("tvlm_waiting_requests", "image") == 0


def test_sequence_whose_pages_were_gone_is_submitted_again(artifacts: Path) -> None:
    stages, client = FakeStages(), Recorder()
    refusals = iter([unavailable("pages: they were given to another image meanwhile")])
    stages.on_submit = lambda submission: next(refusals, None)
    run(artifacts, stages, lambda router: router.serve(tensors("q", gif(1)), "{}", client))
    assert client.text == "ok"
    assert all(len(submission.visuals.pages) for submission in stages.submissions)
    assert stages.visual_values == [[1.0] * 4] * 2
    assert stages.embedded == [1]
