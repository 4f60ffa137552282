"""float16 to float32: NumPy's own conversion is the reference."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.embeddings.half import put_rows
from python_backends.errors import ServingError

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def test_every_finite_value_is_exact_to_the_bit() -> None:
    source = ALL[np.isfinite(ALL)].reshape(-1, 31)  # 63488 = 2048 x 31
    target = np.zeros((len(source), 31), np.float32)
    put_rows(source, target, np.arange(len(source)))
    np.testing.assert_array_equal(target.view(np.uint32), source.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("width", [1, 576, 4096, 70_000])
def test_rows_go_to_their_places_whatever_the_block(width: int) -> None:
    source = np.random.default_rng(0).standard_normal((40, width), np.float32).astype(np.float16)
    places = np.random.default_rng(1).permutation(50)[:40]
    target = np.full((50, width), -1, np.float32)
    put_rows(source, target, places)
    expected = np.full((50, width), -1, np.float32)
    expected[places] = source
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("value", ALL[~np.isfinite(ALL)][::97].tolist())
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    source = np.zeros((3, 8), np.float16)
    source[2, 5] = value
    with pytest.raises(ServingError, match="visual_tokens: hold values that are not finite"):
        put_rows(source, np.zeros((3, 8), np.float32), np.arange(3))
