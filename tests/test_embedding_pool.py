"""The embedding pool's memory between real processes: what a reader gets, and what it never gets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from python_backends.embeddings.pool import EmbeddingPool
from python_backends.embeddings.region import GENERATION, NO_PAGES, PAGE, ROWS, PoolReader
from python_backends.embeddings.target import PAGE_TOKENS
from python_backends.errors import ServingError, Status

HIDDEN = 8
PAGE_BYTES = PAGE_TOKENS * HIDDEN * 2


@pytest.fixture
def pool() -> Iterator[EmbeddingPool]:
    pool = EmbeddingPool(4 * PAGE_BYTES, HIDDEN, b"model")
    yield pool
    pool.close()


def rows(count: int, value: float) -> np.ndarray:
    return (value + np.arange(count * HIDDEN).reshape(count, HIDDEN) / 64).astype(np.float16)


def put(pool: EmbeddingPool, name: bytes, count: int, value: float) -> np.ndarray:
    """Fill an entry and let go of it; gives its list of pages."""
    entry = pool.allocate(pool.key(name), count)
    assert entry is not None
    pool.fill(entry, rows(count, value))
    pages = pool.page_list([entry])
    pool.release(entry)
    return pages


def read(pool: EmbeddingPool, pages: np.ndarray) -> np.ndarray:
    count = int(pages[:, ROWS].sum())
    target = np.zeros((count, HIDDEN), np.float32)
    PoolReader().copy(pool.address, pages, target, np.arange(count))
    return target


@pytest.mark.parametrize("count", [1, PAGE_TOKENS, PAGE_TOKENS + 1, 3 * PAGE_TOKENS + 5])
def test_reader_gets_the_rows_bit_by_bit(pool: EmbeddingPool, count: int) -> None:
    pages = put(pool, b"a", count, 3.0)
    np.testing.assert_array_equal(read(pool, pages), rows(count, 3.0).astype(np.float32))


def test_reader_puts_rows_of_several_images_in_their_places(pool: EmbeddingPool) -> None:
    pages = np.concatenate([put(pool, b"a", 2, 1.0), put(pool, b"b", 1, 2.0)])
    target = np.full((5, HIDDEN), -1, np.float32)
    PoolReader().copy(pool.address, pages, target, np.array([0, 3, 4]))
    assert target[:, 0].tolist() == [1.0, -1, -1, rows(2, 1.0)[1, 0], 2.0]


def test_late_reader_is_refused_when_the_pages_hold_another_image(pool: EmbeddingPool) -> None:
    late = put(pool, b"a", 4 * PAGE_TOKENS, 1.0)
    put(pool, b"b", PAGE_TOKENS, 2.0)  # evicts a
    with pytest.raises(ServingError, match="given to another image") as error:
        read(pool, late)
    assert error.value.status is Status.UNAVAILABLE


def test_entry_of_another_number_of_tokens_than_foreseen_is_not_filled(pool: EmbeddingPool) -> None:
    entry = pool.allocate(b"a", 3)
    assert entry is not None
    with pytest.raises(ValueError, match="4 visual tokens, where 3 were foreseen"):
        pool.fill(entry, rows(4, 1.0))
    assert not entry.filled


@pytest.mark.parametrize(("column", "value"), [(PAGE, 4), (PAGE, -1), (ROWS, 0), (ROWS, PAGE_TOKENS + 1)])
def test_reader_refuses_lists_that_point_outside(pool: EmbeddingPool, column: int, value: int) -> None:
    pages = put(pool, b"a", 2, 1.0)
    pages[0, column] = value
    with pytest.raises(ServingError, match="does not fit the embedding pool"):
        PoolReader().copy(pool.address, pages, np.zeros((2, HIDDEN), np.float32), np.arange(2))


def test_pool_of_no_bytes_has_no_page() -> None:
    pool = EmbeddingPool(0, HIDDEN, b"model")
    assert pool.allocate(b"a", 1) is None
    assert pool.page_list([]) is NO_PAGES
    pool.close()


def test_pool_that_was_given_up_is_not_opened(pool: EmbeddingPool) -> None:
    process, _, identity = pool.address.split("/")
    pages = put(pool, b"a", 1, 1.0)
    with Path(__file__).open("rb") as other, pytest.raises(ServingError, match="pool is gone"):
        target = np.zeros((1, HIDDEN), np.float32)
        PoolReader().copy(f"{process}/{other.fileno()}/{identity}", pages, target, np.arange(1))


def test_address_of_somebody_s_pipe_is_refused_without_waiting(pool: EmbeddingPool) -> None:
    ends = os.pipe()
    pages = put(pool, b"a", 1, 1.0)
    with pytest.raises(ServingError, match="pool is gone"):
        PoolReader().copy(f"{os.getpid()}/{ends[0]}/0", pages, np.zeros((1, HIDDEN), np.float32), np.arange(1))
    for end in ends:
        os.close(end)


def test_same_file_has_another_key_for_another_model() -> None:
    pools = [EmbeddingPool(0, HIDDEN, shaped_by) for shaped_by in (b"model", b"model", b"other")]
    keys = [pool.key(b"file") for pool in pools]
    for pool in pools:
        pool.close()
    assert keys[0] == keys[1] != keys[2]


def test_pictures_of_equal_pixel_bytes_and_other_shape_have_other_keys(pool: EmbeddingPool) -> None:
    """The files differ where the shape does; a key over decoded pixels would not."""
    assert pool.key(b"P6 150 30 255\n" + bytes(13500)) != pool.key(b"P6 30 150 255\n" + bytes(13500))


ROUTER = """
import sys
import numpy as np
from python_backends.embeddings.pool import EmbeddingPool
pool = EmbeddingPool(1 << 20, 8, b"model")
entry = pool.allocate(b"a", 20)
pool.fill(entry, np.full((20, 8), 7, np.float16))
print(pool.address, *pool.page_list([entry]).ravel(), flush=True)
sys.stdin.read()
"""


def test_reader_keeps_its_mapping_when_the_router_is_killed_and_nothing_is_left_behind() -> None:
    before = set(os.listdir("/dev/shm"))
    router = subprocess.Popen([sys.executable, "-c", ROUTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert router.stdout is not None
    address, *numbers = router.stdout.readline().split()
    pages = np.array(numbers, np.int64).reshape(-1, 3)
    reader, late = PoolReader(), PoolReader()
    target = np.zeros((20, HIDDEN), np.float32)
    reader.copy(address, pages, target, np.arange(20))
    assert (target == 7).all()
    assert {name for name in os.listdir("/dev/shm") if "tvlm" in name} <= before
    router.send_signal(signal.SIGKILL)
    router.communicate()
    target[:] = 0
    reader.copy(address, pages, target, np.arange(20))
    assert (target == 7).all()
    with pytest.raises(ServingError, match="can't be opened") as error:
        late.copy(address, pages, target, np.arange(20))
    assert error.value.status is Status.UNAVAILABLE


def test_generation_is_the_one_the_pages_were_written_with(pool: EmbeddingPool) -> None:
    first = put(pool, b"a", 4 * PAGE_TOKENS, 1.0)
    second = put(pool, b"b", 4 * PAGE_TOKENS, 2.0)
    assert set(first[:, PAGE]) == set(second[:, PAGE])
    assert (second[:, GENERATION] == first[:, GENERATION] + 1).all()
