"""The encoder cache: bounded, first in first out, keyed by the file."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from python_backends.embeddings.cache import EmbeddingCache, image_key


def tokens(count: int) -> np.ndarray:
    return np.full((count, 4), count, np.float16)  # 8 bytes a token


def test_oldest_goes_first_and_the_newest_stay() -> None:
    cache = EmbeddingCache(80)
    for name in (b"a", b"b", b"c"):
        cache.put(name, tokens(4))
    assert cache.get(b"a") is None
    assert cache.get(b"b") is not None
    assert cache.get(b"c") is not None


def test_entry_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = EmbeddingCache(80)
    cache.put(b"a", tokens(4))
    cache.put(b"b", tokens(11))
    assert cache.get(b"a") is not None
    assert cache.get(b"b") is None


def test_cache_of_no_bytes_keeps_nothing() -> None:
    cache = EmbeddingCache(0)
    cache.put(b"a", tokens(1))
    assert cache.get(b"a") is None


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.integers(1, 12)), max_size=40))
def test_bytes_never_pass_the_limit_and_count_what_is_there(puts: list[tuple[bytes, int]]) -> None:
    cache = EmbeddingCache(100)
    for key, count in puts:
        cache.put(key, tokens(count))
        assert 0 <= cache.bytes <= 100
    held = {key: cache.get(key) for key, _ in puts}
    assert cache.bytes == sum(array.nbytes for array in held.values() if array is not None)


def test_pictures_of_equal_pixel_bytes_and_other_shape_have_other_keys() -> None:
    """The files differ where the shape does; a key over decoded pixels would not."""
    wide, high = (b"P6 150 30 255\n" + bytes(13500), b"P6 30 150 255\n" + bytes(13500))
    assert image_key(wide) != image_key(high)
    assert image_key(wide) == image_key(bytes(wide))
