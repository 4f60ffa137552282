"""How many prompt tokens a step takes beside decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.step_size import StepSize


def machine(size: StepSize, steps: int, *, decode_s: float, token_s: float) -> int:
    """Steps on a machine of this speed, every fourth without prompt tokens; gives the room of the last."""
    for number in range(steps):
        tokens = size.room(decoding=True) if number % 4 else 0
        size.took(tokens, decode_s + token_s * tokens)
    return size.room(decoding=True)


def test_nobody_decodes_so_a_step_is_as_large_as_it_may_be() -> None:
    assert StepSize(32, 256, 0.2).room(decoding=False) == 256


def test_begins_small_and_grows_to_what_the_slo_leaves() -> None:
    size = StepSize(32, 256, 0.2)
    assert size.room(decoding=True) == 32
    assert machine(size, 40, decode_s=0.04, token_s=0.002) == pytest.approx(80, abs=2)


def test_shrinks_while_pictures_take_the_cores_and_grows_again() -> None:
    size = StepSize(32, 256, 0.2)
    alone = machine(size, 40, decode_s=0.04, token_s=0.002)
    beside_encode = machine(size, 40, decode_s=0.06, token_s=0.004)
    assert beside_encode == pytest.approx(35, abs=2)
    assert machine(size, 40, decode_s=0.04, token_s=0.002) == pytest.approx(alone, abs=2)


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 100)), max_size=30))
def test_stays_within_its_bounds_whatever_steps_take(steps: list[tuple[int, float]]) -> None:
    size = StepSize(32, 256, 0.2)
    for tokens, seconds in steps:
        size.took(tokens, seconds)
        assert 32 <= size.room(decoding=True) <= 256
