"""Submissions on their way to a replica: whose visual tokens are whose, copied or in pages; what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.protocol import (
    GRID,
    HASH,
    IMAGE_TOKENS,
    NO_VISUALS,
    VISUAL_TOKEN,
    Submission,
    VisualRows,
    describe_images,
    submission_tensors,
    submissions_from_tensors,
)
from python_backends.errors import ServingError, Status
from python_backends.sampling import SamplingParams

WIDTH = 3
POOL = "1/2/abc"


def submission(number: int, images: list[int], paged: bool) -> Submission:
    """Images of so many visual tokens, with a text token before each; every row and page is told by the number."""
    tokens = np.array([t for count in images for t in (5, *[VISUAL_TOKEN] * count)] + [6], np.int32)
    visuals = NO_VISUALS
    if images and paged:
        pages = np.array([[number * 100 + i, number, count] for i, count in enumerate(images)], np.int64)
        visuals = VisualRows(NO_VISUALS.copied, pages, POOL)
    elif images:
        visuals = VisualRows(np.full((sum(images), WIDTH), number, np.float16))
    return Submission(number, tokens, visuals, SamplingParams(max_tokens=number))


def test_what_is_told_of_images_arrives_with_their_sequence() -> None:
    keys = [bytes(range(32)), b"\xff" * 32]
    told = describe_images([4, 2], [(2, 2), (1, 2)], keys)
    sampling = SamplingParams(max_tokens=1)
    shown = VisualRows(np.ones((6, WIDTH), np.float16), images=told)
    sent = [
        Submission(1, np.array([5], np.int32), NO_VISUALS, sampling),
        Submission(2, np.full(6, VISUAL_TOKEN, np.int32), shown, sampling),
    ]
    tensors = submission_tensors(sent)
    texts = [text.decode() for text in tensors.pop("sampling")]
    first, second = submissions_from_tensors(tensors, texts)
    assert len(first.visuals.images) == 0
    np.testing.assert_array_equal(second.visuals.images, told)
    assert told[:, IMAGE_TOKENS].tolist() == [4, 2]
    assert told[:, GRID].tolist() == [[2, 2], [1, 2]]
    assert [row.astype("<i4").tobytes() for row in told[:, HASH]] == keys


def test_how_much_of_a_prompt_is_an_answer_already_arrives_with_its_sequence() -> None:
    there = arrived([submission(1, [4], False), replace(submission(2, [2], False), answered=3)])
    assert [s.answered for s in there] == [0, 3]


def test_when_the_first_token_is_due_arrives_with_its_sequence() -> None:
    there = arrived([submission(1, [4], False), replace(submission(2, [2], False), due_s=17.25)])
    assert [s.due_s for s in there] == [np.inf, 17.25]


SUBMISSIONS = st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=3), st.booleans()), min_size=1, max_size=6).map(
    lambda drawn: [submission(n + 1, images, paged) for n, (images, paged) in enumerate(drawn)]
)


def arrived(submissions: list[Submission]) -> list[Submission]:
    tensors = submission_tensors(submissions)
    sampling = [text.decode() for text in tensors.pop("sampling")]
    pool = "".join(text.decode() for text in tensors.pop("pool", []))
    return submissions_from_tensors(tensors, sampling, pool)


@given(SUBMISSIONS)
def test_every_sequence_gets_its_own_visual_tokens(submissions: list[Submission]) -> None:
    there = arrived(submissions)
    assert [s.request_id for s in there] == [s.request_id for s in submissions]
    for sent, got in zip(submissions, there, strict=True):
        np.testing.assert_array_equal(got.tokens, sent.tokens)
        np.testing.assert_array_equal(got.visuals.pages, sent.visuals.pages)
        assert len(got.visuals.copied) == len(sent.visuals.copied)
        assert (got.visuals.copied == sent.request_id).all()
        assert got.sampling == sent.sampling
        if len(sent.visuals.pages):
            assert got.visuals.pool == POOL


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"page_counts": np.array([1], np.int32)}, "page_counts: must have one element a sequence"),
        ({"page_counts": np.array([3, -2], np.int32)}, "page_counts: must have one element a sequence"),
        ({"page_counts": np.array([1, 1], np.int32)}, "page_counts: must have one element a sequence"),
        ({"pages": np.zeros((1, 2), np.int64)}, "pages: rows must have 3 elements"),
        ({"visual_tokens": np.zeros((3, WIDTH), np.float16)}, "visual_tokens: 3 rows for 2 places in tokens"),
        ({"token_counts": np.array([1, 2], np.int32)}, "token_counts: must be positive, and add up to the"),
        ({"answered": np.array([1], np.int32)}, "answered: must have one element a sequence"),
        ({"answered": np.array([0, -1], np.int32)}, "answered: must have one element a sequence"),
        ({"answered": np.array([6, 0], np.int32)}, "answered: must have one element a sequence"),
        ({"due_s": np.array([1.0])}, "due_s: must have one number a sequence"),
        ({"due_s": np.array([1.0, np.nan])}, "due_s: must have one number a sequence"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(change: dict[str, Any], sentence: str) -> None:
    tensors = submission_tensors([submission(1, [4], True), submission(2, [2], False)])
    sampling = [text.decode() for text in tensors.pop("sampling")]
    tensors.pop("pool")
    with pytest.raises(ServingError) as error:
        submissions_from_tensors({**tensors, **change}, sampling, POOL)
    assert error.value.status is Status.INVALID_ARG
    assert error.value.message.startswith(sentence)
