"""What is refused, with which name, value and hint."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import VlmError
from perf.plant import QUEUE_LIMITS, Plant, arrivals, job, settings
from python_backends.errors import Status
from python_backends.scheduling.admission import AdmissionSettings, Load, Memory, pressure, refusal
from python_backends.scheduling.jobs import Encode, Job, Modality, Reject
from python_backends.scheduling.scheduler import Scheduler

LIMITS = AdmissionSettings(
    dict.fromkeys(Modality, 10),
    encode_budget_tokens=256,
    waiting_visual_tokens=512,
    kv_tokens=4096,
    memory_watermark=0.9,
    breaker_pressure=0.7,
    breaker_tokens=1000,
)
IDLE = Load(dict.fromkeys(Modality, 0), Memory(), expected_s=0.0, alone_s=0.0)


def said(job: Job, load: Load, now: float = 0.0) -> str:
    error = refusal(job, now, load, LIMITS)
    return "" if error is None else f"{error.status.value} {error.message}"


@pytest.mark.parametrize(
    ("asked", "load", "sentence"),
    [
        (job(1), IDLE, ""),
        (job(1, images=8), IDLE, ""),
        (
            Job(1, Modality.IMAGE, (300,), 400, 8, 0.0, 1.0),
            IDLE,
            "INVALID_ARG image: 300 visual tokens are over scheduler.encode_budget_tokens = 256",
        ),
        (
            job(1, images=9),
            IDLE,
            "INVALID_ARG image: 576 visual tokens are over the 512 that admission.waiting_visual_mb holds",
        ),
        (
            job(1, prompt=4000, answer=97),
            IDLE,
            "INVALID_ARG max_tokens: 4000 prompt and 97 answer tokens are over the 4096 that pools.text.kv_cache_mb "
            "holds",
        ),
        (
            job(1),
            replace(IDLE, waiting={**IDLE.waiting, Modality.TEXT: 10}, expected_s=2.2),
            "UNAVAILABLE 10 text requests wait already (limit scheduler.classes.text.queue_limit = 10); "
            "retry after 3 s",
        ),
        (job(1, images=1), replace(IDLE, waiting={**IDLE.waiting, Modality.TEXT: 10}), ""),
        (
            job(1),
            replace(IDLE, memory=Memory(kv=0.91)),
            "UNAVAILABLE pools.text.kv_cache_mb is used to 91% (limit admission.memory_watermark = 90%); "
            "retry after 1 s",
        ),
        (job(1, prompt=900, answer=100), replace(IDLE, memory=Memory(kv=0.8)), ""),
        (
            job(1, prompt=900, answer=101),
            replace(IDLE, memory=Memory(kv=0.8), expected_s=4.0),
            "UNAVAILABLE 1001 prompt and answer tokens are over admission.breaker_tokens = 1000 while "
            "pools.text.kv_cache_mb is used to 80% (limit admission.breaker_pressure = 70%); retry after 4 s",
        ),
        (job(1, prompt=900, answer=101), replace(IDLE, memory=Memory(kv=0.6)), ""),
    ],
)  # fmt: skip
def test_refusal_names_the_limit_its_value_and_when_to_come_back(asked: Job, load: Load, sentence: str) -> None:
    assert said(asked, load) == sentence


@pytest.mark.parametrize(("alone_s", "hint"), [(0.5, "; retry after 2 s"), (1.5, "")])
def test_hint_comes_only_where_waiting_helps(alone_s: float, hint: str) -> None:
    hurried = replace(job(1), deadline_s=1.0)
    sentence = said(hurried, replace(IDLE, expected_s=3.0, alone_s=alone_s))
    assert sentence == "UNAVAILABLE deadline_ms: 1000 ms can't be met; the first token is expected in 3000 ms" + hint


@given(
    waiting=st.dictionaries(st.sampled_from(Modality), st.integers(0, 20)),
    used=st.floats(0, 1),
    pages=st.floats(0, 1),
    prompt=st.integers(1, 6000),
    images=st.integers(0, 12),
    expected_s=st.floats(0, 1000),
)
def test_what_is_taken_fits_every_limit_and_what_is_refused_says_one(
    *, waiting: dict[Modality, int], used: float, pages: float, prompt: int, images: int, expected_s: float
) -> None:
    load = Load({**IDLE.waiting, **waiting}, Memory(used, pages), expected_s, 0.0)
    asked = job(1, prompt=prompt, images=images)
    error = refusal(asked, 0.0, load, LIMITS)
    fullest, _ = pressure(asked, load, LIMITS)
    if error is None:
        assert asked.visual_tokens <= LIMITS.waiting_visual_tokens
        assert asked.prompt_tokens + asked.answer_tokens <= LIMITS.kv_tokens
        assert load.waiting[asked.modality] < 10
        assert used < 0.9
        assert images == 0 or pages < 0.9
        assert fullest < 0.7 or asked.prompt_tokens + asked.answer_tokens <= 1000
    else:
        hint = VlmError("UNAVAILABLE", error.message).retry_after_s
        assert (hint is not None) == (error.status is Status.UNAVAILABLE)
        assert re.search(r"(scheduler|admission|pools|cache)\.\w+", error.message)


def test_visual_tokens_between_encode_and_prefill_are_bounded_by_holding_encode_back() -> None:
    limits = AdmissionSettings(QUEUE_LIMITS, waiting_visual_tokens=300)
    scheduler = Scheduler(settings(admission=limits, running_limit=1))
    assert scheduler.arrived(job(1, images=2), 0.0) == [Encode(1, 0, 0), Encode(1, 1, 0)]
    scheduler.arrived(job(2, images=2), 0.0)
    assert scheduler.visual_tokens_waiting == 256
    assert scheduler.arrived(job(3, images=1), 0.0) == []  # 256 + 64 are over 300
    scheduler.encoded(1, 0, 0.1)
    scheduler.encoded(1, 1, 0.1)  # handed over, and not prefilled yet
    assert scheduler.visual_tokens_waiting == 256
    assert scheduler.token(1, 0.2) == [Encode(3, 0, 0)]
    assert scheduler.visual_tokens_waiting == 192


@pytest.mark.parametrize("encode_budget", [64, 128, 1024])  # the small ones are shared by the items of several jobs
def test_bound_on_waiting_visual_tokens_holds_and_nothing_is_stuck_under_load(encode_budget: int) -> None:
    limits = AdmissionSettings(QUEUE_LIMITS, waiting_visual_tokens=512)
    scheduler = Scheduler(settings(admission=limits, encode_budget_tokens=encode_budget, running_limit=4))
    most = 0

    class Watched(Plant):
        def _do(self, *arguments: object) -> None:
            nonlocal most
            super()._do(*arguments)  # type: ignore[arg-type]
            most = max(most, scheduler.visual_tokens_waiting)

    plant = Watched(scheduler)
    plant.run(arrivals(2000, rate=30, image_share=0.5))
    assert sorted(plant.ended) == list(range(2000))
    assert 256 < most <= 512
    assert scheduler.visual_tokens_waiting == 0


def test_memory_over_its_watermark_refuses_until_it_falls() -> None:
    scheduler = Scheduler(settings(admission=replace(LIMITS, breaker_tokens=1 << 40)))
    scheduler.memory(Memory(kv=0.95))
    assert isinstance(scheduler.arrived(job(1), 0.0)[0], Reject)
    scheduler.memory(Memory(kv=0.5, pages=0.95))
    assert not isinstance(scheduler.arrived(job(2), 1.0)[0], Reject)
    refused = scheduler.arrived(job(3, images=1), 1.0)[0]  # only it needs pages
    assert isinstance(refused, Reject)
    assert "cache.encoder_mb is used to 95% (limit admission.memory_watermark = 90%)" in refused.error.message


def test_draining_refuses_what_comes_and_what_has_images_to_encode_still() -> None:
    scheduler = Scheduler(settings(encode_budget_tokens=64, running_limit=1))
    scheduler.arrived(job(1), 0.0)  # runs
    scheduler.arrived(job(2), 0.0)  # waits for the replica
    assert scheduler.arrived(job(3, images=1), 0.0) == [Encode(3, 0, 0)]
    scheduler.arrived(job(4, images=2), 0.0)
    refused = scheduler.drain(1.0)
    assert [(a.job_id, a.error.message) for a in refused if isinstance(a, Reject)] == [
        (4, "draining: this server is about to stop; ask another one")
    ]
    assert len(refused) == 1
    late = scheduler.arrived(job(5), 1.0)[0]
    assert isinstance(late, Reject)
    assert late.error.status is Status.UNAVAILABLE
    scheduler.encoded(3, 0, 1.5)
    assert scheduler.ended(1, 2.0) != []  # the admitted go on
