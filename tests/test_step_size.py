"""How many prompt tokens a step takes beside decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.step_size import StepSize

DECODING = 4


def machine(size: StepSize, steps: int, *, step_s: float, token_s: float, decoding: int = DECODING) -> int:
    """Steps on a machine of this speed, every fourth without prompt tokens; gives the room of the last."""
    for number in range(steps):
        tokens = size.room(decoding) if number % 4 else 0
        size.took(tokens, decoding, step_s + token_s * (tokens + decoding))
    return size.room(decoding)


def test_nobody_decodes_so_a_step_is_as_large_as_it_may_be() -> None:
    assert StepSize(32, 256, 0.2).room(decoding=0) == 256


def test_begins_small_and_grows_to_what_the_slo_leaves_in_whole_blocks() -> None:
    size = StepSize(32, 256, 0.2)
    assert size.room(DECODING) == 32
    assert machine(size, 60, step_s=0.03, token_s=0.002) == 64  # of 81
    assert size.room(40) == 32  # of 45


def test_shrinks_while_pictures_take_the_cores_and_grows_again() -> None:
    size = StepSize(32, 256, 0.2)
    alone = machine(size, 60, step_s=0.03, token_s=0.002)
    assert machine(size, 60, step_s=0.06, token_s=0.004) == 32
    assert machine(size, 120, step_s=0.03, token_s=0.002) == alone


def test_time_that_encode_had_before_a_step_is_not_there_for_prompts() -> None:
    size = StepSize(32, 256, 0.2)
    machine(size, 60, step_s=0.03, token_s=0.002)
    assert size.room(DECODING, lost_s=0.05) == 32
    assert [size.room(DECODING, lost_s=0.2) for _ in range(4)] == [0, 32, 0, 32]  # they are not starved


def test_spare_is_what_decode_leaves_of_the_slo_once_that_is_known() -> None:
    size = StepSize(32, 256, 0.2)
    assert size.spare_s(DECODING) == 0
    machine(size, 60, step_s=0.03, token_s=0.002)
    assert size.spare_s(DECODING) == pytest.approx(0.062, abs=0.01)
    assert size.spare_s(20) == pytest.approx(0.03, abs=0.01)
    machine(size, 60, step_s=0.4, token_s=0.002)
    assert size.spare_s(DECODING) == 0


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 64), st.floats(0, 100)), max_size=30))
def test_stays_within_its_bounds_whatever_steps_take(steps: list[tuple[int, int, float]]) -> None:
    size = StepSize(32, 256, 0.2)
    for tokens, decoding, seconds in steps:
        size.took(tokens, decoding, seconds)
        assert 32 <= size.room(decoding=1) <= 256
        assert 0 <= size.spare_s(decoding) <= 0.1
