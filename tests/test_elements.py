"""BYTES tensors are read as Triton's own client writes them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import serialize_byte_tensor

from python_backends.elements import read

LARGE = 2 << 20


def encoded(*items: bytes) -> np.ndarray:
    tensor = np.array(items, np.object_)
    return np.frombuffer(serialize_byte_tensor(tensor).item(), np.uint8) if items else np.zeros(0, np.uint8)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_elements_come_back(items: list[bytes]) -> None:
    assert read(encoded(*items), 8).tolist() == items


def test_large_elements_are_not_copied() -> None:
    tensor = encoded(b"a", b"b" * LARGE, b"c" * LARGE)
    elements = read(tensor, 8).reshape([3, 1])
    assert elements[0, 0] == b"a"
    for index, begin in ((1, 5 + 4), (2, 5 + 4 + LARGE + 4)):
        large = elements[index, 0]
        assert len(large) == LARGE
        assert np.shares_memory(np.frombuffer(large, np.uint8), tensor[begin : begin + LARGE])


def test_too_many_are_counted_and_not_read() -> None:
    elements = read(encoded(*[b"x"] * 10), 8).reshape([10])
    assert elements.shape == (10,)
    assert set(elements.tolist()) == {b""}
