"""The encoder's batching window: whom it holds, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.scheduling.window import BatchWindow

MOST_S = 0.005


def measured(fixed_s: float, each_s: float, sizes: tuple[int, ...] = (1, 4, 2, 8, 1, 3)) -> BatchWindow:
    """After batches that took `fixed_s`, and `each_s` for every picture in them."""
    window = BatchWindow(MOST_S, batch_size=8)
    for size in sizes:
        window.encoded(size, fixed_s + each_s * size)
    return window


def test_lone_picture_and_full_batch_never_wait() -> None:
    for window in (BatchWindow(MOST_S, 8), measured(0.003, 0.001)):
        assert window.wait_s(pictures=1, coming=0) == 0
        assert window.wait_s(pictures=8, coming=5) == 0


@pytest.mark.parametrize(
    ("fixed_s", "waits_s"),
    [(0.003, 0.003), (0.0, 0.0), (0.100, MOST_S)],
    ids=["as long as a batch saves", "not where it saves nothing", "never longer than the setting"],
)
def test_window_is_what_a_batch_saves(fixed_s: float, waits_s: float) -> None:
    assert measured(fixed_s, 0.01).wait_s(pictures=2, coming=1) == pytest.approx(waits_s, abs=1e-9)


def test_window_follows_what_changes() -> None:
    window = measured(0.004, 0.001)
    for size in (1, 2, 4, 8) * 40:
        window.encoded(size, 0.001 + 0.002 * size)
    assert window.wait_s(1, 1) == pytest.approx(0.001, rel=0.05)


def test_window_is_the_setting_until_two_sizes_were_measured() -> None:
    assert BatchWindow(MOST_S, 8).wait_s(1, 1) == MOST_S
    assert measured(0.0, 0.02, sizes=(1, 1, 1)).wait_s(1, 1) == MOST_S


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 100)), max_size=50), st.integers(0, 64), st.integers(1, 64))
def test_window_is_never_negative_nor_over_the_setting(
    batches: list[tuple[int, float]], coming: int, pictures: int
) -> None:
    window = BatchWindow(MOST_S, batch_size=8)
    for size, seconds in batches:
        window.encoded(size, seconds)
    assert 0 <= window.wait_s(pictures, coming) <= MOST_S
