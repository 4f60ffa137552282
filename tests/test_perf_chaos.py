"""What the measurements under perf/ make of what they see; the measurements themselves need a quiet machine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perf.chaos import End, judge
from perf.fake_engine import FakeEngine
from perf.interference.bound import Profile
from perf.interference.simulated import FASTER, SERVED, Arrangement, figures
from perf.interference.workload import BURST_PICTURES, BURST_REQUESTS, LEAD_S, Seen, requests, summary
from perf.mix import mix
from perf.processes import Held
from perf.soak import growth
from python_backends.engines.protocol import NO_VISUALS, Finish, Submission, submission_tensors
from python_backends.sampling import SamplingParams

IDLE = Held(memory_mb=1000, files=100, threads=50, processes=8, shm_files=5, shm_mb=64)


def answer(engine: FakeEngine, prompt: int, tokens: int) -> list[int]:
    sampling = SamplingParams(max_tokens=tokens)
    tensors = submission_tensors([Submission(1, np.zeros(prompt, np.int32), NO_VISUALS, sampling)])
    names = [name for name in tensors if name != "sampling"]
    engine.handle(
        "submit",
        [tensors[name] for name in names],
        {"names": names, "sampling": [text.decode() for text in tensors["sampling"]]},
    )
    made: list[int] = []
    while engine.busy:
        report = engine.step()
        made += report.tokens.tolist()
    assert report.finish_reasons.tolist() == [Finish.LENGTH]
    return made


def test_fake_engine_goes_on_where_a_sequence_was_when_its_tokens_are_in_the_prompt() -> None:
    whole = answer(FakeEngine({}), prompt=10, tokens=8)
    assert answer(FakeEngine({}), prompt=13, tokens=5) == whole[3:]


def test_mix_is_the_same_for_the_same_seed_and_no_picture_comes_twice() -> None:
    asks = list(mix(50, image_share=0.5))
    assert asks == list(mix(50, image_share=0.5))
    images = [ask.image for ask in asks if ask.image]
    assert 10 < len(images) == len(set(images)) < 40


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        (End("other", None, 1.0), "answers differ"),
        (End(None, "INTERNAL: a bug", 1.0), "not UNAVAILABLE"),
        (End("calm", None, 70.0), "later than their deadline"),
    ],
)
def test_chaos_names_the_rule_that_was_broken(end: End, rule: str) -> None:
    calm = [End("calm", None, 1.0)] * 2
    good = [End("calm", None, 2.0), End(None, "UNAVAILABLE: vision_encoder: died", 3.0)]
    assert judge(good, calm, deadline_s=60) == []
    (sentence,) = judge([good[0], end], calm, deadline_s=60)
    assert rule in sentence


@pytest.mark.parametrize(
    "grown", [{"memory_mb": 1100}, {"files": 150}, {"threads": 90}, {"processes": 9}, {"shm_files": 6}, {"shm_mb": 90}]
)
def test_soak_sees_what_has_grown(grown: dict[str, int]) -> None:
    assert growth(IDLE, replace(IDLE, memory_mb=990, files=104)) == []
    (sentence,) = growth(IDLE, replace(IDLE, **grown))
    assert next(iter(grown)).split("_")[0] in sentence or "/dev/shm" in sentence


def test_interference_judges_text_between_the_burst_and_its_last_answer() -> None:
    sent = requests(60.0, burst=True)
    assert sum(len(request.images) for request in sent) == BURST_REQUESTS * BURST_PICTURES
    texts, without = [r for r in sent if not r.images], requests(60.0, burst=False)
    assert [(r.at_s, r.text.split()[1:]) for r in texts] == [(r.at_s, r.text.split()[1:]) for r in without]
    assert {r.text.split()[0] for r in texts}.isdisjoint(r.text.split()[0] for r in without)  # no prefix is cached
    seen = [
        Seen(bool(r.images), ttft_s=0.1 if LEAD_S <= r.at_s <= LEAD_S + 20 else 9.0, total_s=20.0, gaps_s=[0.05, 0.1])
        for r in sent
    ]
    figures = summary(sent, seen)
    assert (figures.text_ttft_p99, figures.image_p99, figures.longest_gap) == pytest.approx((100, 20_000, 100))
    assert 20 < figures.text_requests < 40
    alone = requests(60.0, burst=False)
    assert math.isnan(summary(alone, [Seen(False, 0.1, 1.0, [0.1]) for _ in alone]).image_p99)


@pytest.mark.parametrize(("how", "gap_ms"), [(SERVED, 200), (FASTER, 300)])
def test_bench_deployment_holds_all_three_bounds_in_virtual_time_and_the_monolith_does_not(
    how: Arrangement, gap_ms: float
) -> None:
    """On two cores as they were profiled: 0.67 s a picture, 3.93 ms a prompt token, 36.7 ms a decode step."""
    profile = Profile(encode_s=0.667, prefill_s=0.00393, step_s=0.0367)
    alone, burst = figures(profile, 2, how)
    _, monolith = figures(profile, 2, Arrangement("monolith", monolith=True))
    assert burst.text_ttft_p99 <= 3 * alone.text_ttft_p99
    assert burst.longest_gap < gap_ms
    assert burst.image_p99 <= 1.5 * monolith.image_p99
    assert monolith.text_ttft_p99 > 10 * burst.text_ttft_p99
