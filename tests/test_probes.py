"""When a stub counts as hung: no answer and nothing done, for as long as was watched."""

from __future__ import annotations

from client.serving.probes import Pulse, hang_limit_s
from python_backends.deployment import parse_deployment


def watch(pulse: Pulse, seconds: float, *, done_every_s: float | None = None, answers_after_s: float = 1e9) -> float:
    """Looks once a second, asks when in doubt; gives the seconds until it is called hung."""
    asked_s: float | None = None
    for now in range(1, int(seconds) + 1):
        done = 0 if done_every_s is None else int(now / done_every_s)
        answered = asked_s is not None and now - asked_s >= answers_after_s
        pulse.look(done, answered, 1.0)
        asked_s = None if answered else asked_s
        if pulse.is_doubtful:
            pulse.asked()
            asked_s = now
        if pulse.hangs:
            return float(now)
    return float("inf")


def test_silent_model_is_hung_after_its_limit_and_the_doubt_before_it() -> None:
    assert 20 <= watch(Pulse(20.0), 60) <= 27


def test_idle_model_that_answers_is_well() -> None:
    assert watch(Pulse(20.0), 600, answers_after_s=1) == float("inf")


def test_model_under_load_is_well_as_long_as_it_gets_something_done_or_answers_late() -> None:
    assert watch(Pulse(20.0), 600, done_every_s=18) == float("inf")
    assert watch(Pulse(20.0), 600, answers_after_s=18) == float("inf")


def test_model_at_work_is_not_asked() -> None:
    pulse = Pulse(20.0)
    for now in range(100):
        pulse.look(now // 4, False, 1.0)
        assert not pulse.is_doubtful


def test_standstill_of_the_whole_machine_is_nobodys_silence() -> None:
    pulse = Pulse(20.0)
    for _ in range(8):
        pulse.look(0, False, 1.0)
        if pulse.is_doubtful:
            pulse.asked()
    pulse.look(0, False, 3600.0)
    assert not pulse.hangs


def test_limits_are_those_of_the_stages_and_the_setting() -> None:
    deployment = parse_deployment(
        {
            "checkpoint": "x",
            "pools": {
                "preprocess": {"timeout_ms": 2000},
                "vision": {"timeout_ms": 3000},
                "text": {"stall_timeout_ms": 4000},
            },
            "serving": {"hang_timeout_s": 10},
        },
        "test",
    )  # fmt: skip
    models = ("vlm", "image_decode", "vision_encoder", "llm_decoder_1")
    assert [hang_limit_s(deployment, model) for model in models] == [10, 12, 13, 14]
