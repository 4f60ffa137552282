"""When running answers are due for their next token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.pace import Pace

SLO_S = 0.08


def test_nobody_waits_while_no_answer_runs() -> None:
    pace = Pace(SLO_S)
    assert pace.slack_s(5.0) == float("inf")
    pace.got_tokens(1, 1, 5.0, late=False, decode_s=0.02)
    pace.ended(1)
    pace.ended(2)  # one that never began
    assert pace.slack_s(5.0) == float("inf")


def test_the_answer_that_is_due_first_says_the_slack() -> None:
    pace = Pace(SLO_S)
    pace.got_tokens(1, 1, 5.0, late=False, decode_s=0.02)
    pace.got_tokens(2, 1, 5.05, late=False, decode_s=0.02)
    assert pace.slack_s(5.05) == pytest.approx(0.03)
    pace.ended(1)
    assert pace.slack_s(5.05) == pytest.approx(0.08)


def test_an_answer_that_is_ahead_can_wait_but_not_for_more_than_three_tokens() -> None:
    pace = Pace(SLO_S)
    for number in range(20):  # a token every 20 ms
        pace.got_tokens(1, 1, 0.02 * number, late=False, decode_s=0.02)
    assert pace.slack_s(0.38) == pytest.approx(3 * SLO_S)


def test_one_that_began_late_leaves_its_time_to_others() -> None:
    pace = Pace(SLO_S)
    pace.got_tokens(1, 1, 0.0, late=True, decode_s=0.02)
    assert pace.slack_s(0.0) == pytest.approx(4 * SLO_S)


def test_who_was_held_up_for_long_catches_up_on_three_tokens_only() -> None:
    pace = Pace(SLO_S)
    pace.got_tokens(1, 1, 0.0, late=False, decode_s=0.02)
    assert pace.slack_s(30.0) == pytest.approx(SLO_S - 30)
    pace.got_tokens(1, 1, 30.0, late=False, decode_s=0.02)
    assert pace.slack_s(30.0) == pytest.approx(-3 * SLO_S)


def test_encode_may_have_what_decode_leaves_of_the_slack_but_one_token_s_time_at_the_most() -> None:
    pace = Pace(SLO_S)
    assert pace.spare_s(0.0, decode_s=0.02) == SLO_S  # nobody waits
    pace.got_tokens(1, 1, 0.0, late=False, decode_s=0.02)
    assert pace.spare_s(0.0, decode_s=0.02) == pytest.approx(SLO_S - 0.02)
    assert pace.spare_s(1.0, decode_s=0.02) == 0
    pace.got_tokens(2, 1, 0.0, late=True, decode_s=0.02)
    pace.ended(1)
    assert pace.spare_s(0.0, decode_s=0.02) == pytest.approx(SLO_S)


def test_many_answers_leave_prompts_half_of_the_time() -> None:
    pace = Pace(SLO_S)
    pace.got_tokens(1, 1, 0.0, late=False, decode_s=0.06)
    assert pace.slack_s(0.0) == pytest.approx(0.12)


@given(st.lists(st.floats(0.001, 0.5), min_size=2, max_size=60))
def test_who_takes_no_more_than_the_slack_keeps_the_mean(wanted: list[float]) -> None:
    """Steps as long as they like, within the slack, and of 10 ms where there is none: the SLO holds on the mean."""
    pace, now = Pace(SLO_S), 0.0
    pace.got_tokens(1, 1, now, late=False, decode_s=0.01)
    for step_s in wanted:
        now += max(0.01, min(step_s, pace.slack_s(now)))
        pace.got_tokens(1, 1, now, late=False, decode_s=0.01)
    assert now / len(wanted) <= SLO_S + 1e-9
