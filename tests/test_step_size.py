"""How many prompt tokens a step takes beside decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.step_size import StepSize

DECODING = 4
SLACK_S = 0.2


def machine(size: StepSize, steps: int, *, step_s: float, token_s: float, decoding: int = DECODING) -> int:
    """Steps on a machine of this speed, every fourth without prompt tokens; gives the room of the last."""
    for number in range(steps):
        tokens = size.room(decoding, SLACK_S) if number % 4 else 0
        size.took(tokens, decoding, step_s + token_s * (tokens + decoding))
    return size.room(decoding, SLACK_S)


def test_nobody_decodes_so_a_step_is_as_large_as_it_may_be() -> None:
    assert StepSize(32, 256).room(decoding=0, slack_s=float("inf")) == 256


def test_begins_small_and_grows_to_what_the_slack_leaves_in_whole_blocks() -> None:
    size = StepSize(32, 256)
    assert size.room(DECODING, SLACK_S) == 32
    assert machine(size, 60, step_s=0.03, token_s=0.002) == 64  # of 81
    assert size.room(40, SLACK_S) == 32  # of 45
    assert size.room(DECODING, slack_s=0.4) == 160  # of 181


def test_shrinks_while_pictures_take_the_cores_and_grows_again() -> None:
    size = StepSize(32, 256)
    alone = machine(size, 60, step_s=0.03, token_s=0.002)
    assert machine(size, 60, step_s=0.06, token_s=0.004) == 32
    assert machine(size, 120, step_s=0.03, token_s=0.002) == alone


@pytest.mark.parametrize("slack_s", [0.05, 0.0, -1.0])
def test_prompts_wait_for_slack_and_are_not_starved(slack_s: float) -> None:
    size = StepSize(32, 256)
    machine(size, 60, step_s=0.03, token_s=0.002)
    assert [size.room(DECODING, slack_s) for _ in range(8)] == [0, 0, 0, 32] * 2


def test_slack_without_end_fills_the_largest_step() -> None:
    size = StepSize(32, 256)
    machine(size, 60, step_s=0.03, token_s=0.002)
    assert size.room(DECODING, slack_s=float("inf")) == 256


def test_what_decode_takes_is_told_once_that_is_known() -> None:
    size = StepSize(32, 256)
    assert size.decode_s(DECODING) == 0
    machine(size, 60, step_s=0.03, token_s=0.002)
    assert size.decode_s(DECODING) == pytest.approx(0.038, abs=0.005)
    assert size.decode_s(20) == pytest.approx(0.07, abs=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 64), st.floats(0, 100)), max_size=30),
    st.floats(-10, 100),
)
def test_stays_within_its_bounds_whatever_steps_take(steps: list[tuple[int, int, float]], slack_s: float) -> None:
    size = StepSize(32, 256)
    for tokens, decoding, seconds in steps:
        size.took(tokens, decoding, seconds)
        assert 0 <= size.room(decoding=1, slack_s=slack_s) <= 256
        assert size.decode_s(decoding) >= 0
