"""The account of prompt tokens that need not be computed again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.prefix import PrefixAccount

BLOCK = 4


def prompt(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.float32)[:, np.newaxis] * np.ones((1, 16), np.float32)


def test_same_beginning_is_known_by_whole_blocks() -> None:
    account = PrefixAccount(100, BLOCK)
    assert account.enter(prompt(1, 2, 3, 4, 5, 6, 7, 8, 9)) == 0
    assert account.enter(prompt(1, 2, 3, 4, 5, 6, 7, 8, 10, 11)) == 8
    assert account.enter(prompt(1, 2, 3, 4, 9, 9, 9, 9)) == 4


def test_same_block_after_another_beginning_is_not_known() -> None:
    account = PrefixAccount(100, BLOCK)
    account.enter(prompt(1, 1, 1, 1, 2, 2, 2, 2))
    assert account.enter(prompt(3, 3, 3, 3, 2, 2, 2, 2)) == 0
    assert account.enter(prompt(2, 2, 2, 2)) == 0


def test_last_token_is_always_computed() -> None:
    account = PrefixAccount(100, BLOCK)
    account.enter(prompt(1, 2, 3, 4))
    assert account.enter(prompt(1, 2, 3, 4)) == 3


def test_least_recently_used_blocks_are_forgotten() -> None:
    account = PrefixAccount(2, BLOCK)
    first, second, third = (prompt(*[value] * 5) for value in (1, 2, 3))
    account.enter(first)
    account.enter(second)
    assert account.enter(first) == 4
    account.enter(third)
    assert account.enter(second) == 0


def common_length(some: list[int], other: list[int]) -> int:
    return next((i for i in range(len(some)) if some[: i + 1] != other[: i + 1]), len(some))


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=20))
def test_account_agrees_with_all_prompts_seen_when_nothing_is_forgotten(prompts: list[list[int]]) -> None:
    account = PrefixAccount(10_000, BLOCK)
    seen: list[list[int]] = []
    for tokens in prompts:
        common = max((common_length(tokens, other) for other in seen), default=0)
        assert account.enter(prompt(*tokens)) == min(common // BLOCK * BLOCK, len(tokens) - 1)
        seen.append(tokens)
