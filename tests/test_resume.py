"""Going on after an engine's death: nothing repeated, nothing lost, seeded or not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.protocol import NO_VISUALS, Finish, Submission
from python_backends.errors import ServingError, StageGone, invalid, unavailable
from python_backends.router import calls
from python_backends.router.calls import BlockingCalls, with_retry
from python_backends.router.channel import Tokens
from python_backends.router.resume import Resumption
from python_backends.sampling import SamplingParams

PROMPT = [5, 6, 7]


def engine(submission: Submission, length: int) -> list[int]:
    """What a deterministic engine says: each token depends on all before it, and on the seed where it samples."""
    sampling = submission.sampling
    seed = sampling.seed if sampling.temperature else 0
    said: list[int] = []
    so_far = submission.tokens.tolist()
    assert sampling.max_tokens is not None
    for step in range(min(length, sampling.max_tokens)):
        draw = (seed or 0) * (step + 1) if sampling.temperature else 0  # the random numbers start with the submission
        said.append((sum((i + 1) * token for i, token in enumerate(so_far + said)) + draw) % 1000)
    return said


def batches(tokens: list[int], sizes: list[int]) -> list[Tokens]:
    """The tokens as news, so many at a time."""
    news, start = [], 0
    while start < len(tokens):
        size = sizes[len(news) % len(sizes)]
        part = tokens[start : start + size]
        start += size
        news.append(Tokens(part, Finish.LENGTH if start >= len(tokens) else Finish.RUNNING, 0.0, 0.0))
    return news


@given(
    sampling=st.sampled_from([
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, temperature=1.0, seed=11),
        SamplingParams(max_tokens=12, temperature=1.0),
        SamplingParams(max_tokens=12, repetition_penalty=1.2),
    ]),
    deaths=st.lists(st.integers(0, 11), max_size=3),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)  # fmt: skip
def test_stream_over_deaths_is_the_undisturbed_stream(
    sampling: SamplingParams, deaths: list[int], sizes: list[int]
) -> None:
    submission = Submission(1, np.array(PROMPT, np.int32), NO_VISUALS, sampling)
    resumption = Resumption(submission)
    undisturbed = engine(resumption.next_submission([], NO_VISUALS), 12)
    client: list[int] = []
    finished: list[Finish] = []
    ids = set()
    for death in [*deaths, None]:  # each run dies after so many tokens, the last one does not
        run = resumption.next_submission(client, NO_VISUALS)
        assert run.request_id not in ids
        assert run.answered == len(run.tokens) - len(PROMPT), "a replayed one begins with its prompt again"
        ids.add(run.request_id)
        for news in batches(engine(run, 12)[:death], sizes):
            fresh = resumption.new(news)
            if fresh is not None:
                client += fresh.tokens
                finished.append(fresh.finish)
    assert client == undisturbed
    assert finished[-1] is Finish.LENGTH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_that_goes_on_has_its_first_token_already(temperature: float) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=temperature)
    resumption = Resumption(Submission(1, np.array(PROMPT, np.int32), NO_VISUALS, sampling, due_s=17.0))
    assert resumption.next_submission([], NO_VISUALS).due_s == 17
    assert resumption.next_submission([5], NO_VISUALS).due_s == np.inf


def test_end_that_comes_with_repeated_tokens_only_is_not_lost() -> None:
    sampled = SamplingParams(max_tokens=4, temperature=1.0, seed=1)
    resumption = Resumption(Submission(1, np.array(PROMPT, np.int32), NO_VISUALS, sampled))
    resumption.next_submission([1, 2], NO_VISUALS)
    assert resumption.new(Tokens([1], Finish.RUNNING, 0.0, 0.0)) is None
    assert resumption.new(Tokens([2], Finish.STOP, 0.0, 0.0)) == Tokens([], Finish.STOP, 0.0, 0.0)


def retried(errors: list[ServingError]) -> tuple[str, int]:
    """Work that fails with these errors first: how it ended, and how often a retry was told."""
    told = []

    async def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    async def main() -> str:
        try:
            return await with_retry(work, told.append)
        except ServingError as error:
            return error.message

    return asyncio.run(main()), len(told)


@pytest.mark.parametrize(
    ("errors", "end", "told"),
    [
        ([], "done", 0),
        ([unavailable("died")], "done", 1),
        ([unavailable("died"), unavailable("died again")], "died again", 1),
        ([invalid("image", "bad")], "image: bad", 0),
        ([StageGone("not ready")] * 5, "done", 1),  # it is waited for
        ([unavailable("silent"), StageGone("gone"), StageGone("gone")], "done", 2),
    ],
)
def test_work_is_done_once_more_and_a_stage_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, errors: list[ServingError], end: str, told: int
) -> None:
    monkeypatch.setattr(calls, "_LOOK_S", 0.0)
    assert retried(list(errors)) == (end, told)


def test_stage_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LOOK_S", 0.001)
    monkeypatch.setattr(calls, "RETURN_S", 0.02)
    assert retried([StageGone("not ready")] * 10_000) == ("not ready", 1)


def test_call_that_hangs_ends_at_its_deadline_and_holds_up_no_other() -> None:
    async def main() -> None:
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang() -> None:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

        blocking = BlockingCalls(1, "stage", deadline_s=0.05)
        with pytest.raises(StageGone, match=r"stage: no answer within 0\.05 s"):
            await blocking.run(hang)
        assert await blocking.run(lambda: 7) == 7
        release.set()
        blocking.close()

    asyncio.run(main())


def test_call_that_is_with_a_stage_when_others_find_it_gone_is_not_waited_for_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_ORPHAN_S", 0.05)

    async def main() -> None:
        release, begun = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

        def find_gone() -> None:
            raise StageGone("its stub is dead")

        blocking = BlockingCalls(2, "stage")
        hanging = asyncio.create_task(blocking.run(hang))
        await begun.wait()
        with pytest.raises(StageGone, match="its stub is dead"):
            await blocking.run(find_gone)
        with pytest.raises(StageGone, match="stage: no answer within"):
            await asyncio.wait_for(hanging, 20)
        release.set()
        blocking.close()

    asyncio.run(main())
