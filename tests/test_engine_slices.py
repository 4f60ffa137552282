"""Long prompts in slices: what the engine is given, and when."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf.deployments import llm_config
from python_backends.engines.llm_openvino import LlmEngine
from python_backends.engines.protocol import NO_VISUALS, Submission, submission_tensors
from python_backends.engines.slices import PICTURES, TEXT, Kind, PrefillSlices
from python_backends.sampling import SamplingParams

MOST = 600  # prompt tokens in a step


class FakeSlice:
    """A slice that the fake engine has not ended yet."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.done = False
        self.cancelled = False

    def is_done(self) -> bool:
        return self.done

    def cancel(self) -> None:
        self.cancelled = True


class FakeEngine:
    """Keeps the slices that it was given; its cache has blocks of 32 tokens."""

    def __init__(self) -> None:
        self.given: list[FakeSlice] = []
        self.slices = PrefillSlices(32, MOST // 2, self._start)

    def _start(self, embeddings: np.ndarray) -> FakeSlice:
        self.given.append(FakeSlice(embeddings.shape[1]))
        return self.given[-1]

    def add(self, request_id: int, tokens: int, cached: int = 0, kind: Kind = PICTURES) -> None:
        self.slices.add(request_id, np.zeros((1, tokens, 2), np.float32), kind, cached)

    def step(self, room: int) -> tuple[list[int], int]:
        """The prompts that go in whole, and the tokens of the step; slices of the step before are done."""
        for earlier in self.given:
            earlier.done = True
        ready, tokens = self.slices.begin_step(room)
        return [request_id for request_id, _ in ready], tokens


def test_one_slice_at_a_time_and_the_whole_prompt_when_only_its_last_is_left() -> None:
    engine = FakeEngine()
    engine.add(7, 150)
    assert engine.slices.begin_step(64) == ([], 64)
    assert engine.slices.begin_step(64) == ([], 0)  # the first is still running
    assert engine.step(64) == ([], 64)
    assert engine.step(64) == ([7], 22)
    assert [s.tokens for s in engine.given] == [64, 128]
    assert engine.step(64) == ([], 0)


def test_short_prompts_share_a_step_and_a_slice_takes_the_room_that_they_leave() -> None:
    engine = FakeEngine()
    engine.add(1, 500)
    engine.add(2, 20)
    engine.add(3, 10)
    assert engine.step(100) == ([3, 2], 30 + 64)
    assert [s.tokens for s in engine.given] == [64]
    assert engine.step(31) == ([], 0)  # less than a block


def test_pictures_take_half_of_the_largest_step_and_text_all_of_it() -> None:
    engine = FakeEngine()
    engine.add(1, 1000)
    assert engine.step(MOST) == ([], 288)  # of 300, in whole blocks
    engine.add(2, 580, kind=TEXT)
    assert engine.step(MOST) == ([2], 580)
    assert engine.step(64) == ([], 64)


def test_text_takes_what_pictures_leave_of_a_step_though_they_go_first() -> None:
    engine = FakeEngine()
    engine.add(1, 290)
    engine.add(2, 400)
    engine.add(3, 450, kind=TEXT)
    assert engine.step(MOST) == ([1], 290 + 288)  # nothing of the second, and a slice of the text


def test_what_the_cache_holds_is_not_sliced_again() -> None:
    engine = FakeEngine()
    engine.add(1, 200, cached=140)
    assert engine.step(32) == ([], 32)
    assert engine.given[0].tokens == 128 + 32
    assert engine.step(64) == ([1], 40)


def test_cancelled_prompt_ends_its_slice_and_leaves_the_others_their_turn() -> None:
    engine = FakeEngine()
    for request_id in (1, 2, 3):
        engine.add(request_id, 100)
    engine.slices.begin_step(64)
    engine.slices.cancel(2)
    engine.slices.cancel(1)
    assert engine.given[0].cancelled
    engine.step(64)
    assert engine.step(64) == ([3], 36)


def run(engine: FakeEngine, arrivals: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """Steps of 64 until nothing is left; arrivals: before which step comes which prompt (request id, tokens)."""
    arrivals, out = dict(arrivals or {}), []
    for number in range(5000):
        if (coming := arrivals.pop(number, None)) is not None:
            engine.add(*coming)
        ready, tokens = engine.step(64)
        assert tokens <= 64
        out += ready
        if not tokens and not arrivals:
            break
    return out


def test_the_shortest_goes_first_also_when_it_comes_later() -> None:
    engine = FakeEngine()
    engine.add(1, 3000)
    engine.add(2, 300)
    assert run(engine, {3: (3, 200), 30: (4, 100)}) == [2, 3, 4, 1]


def test_equals_go_in_order_and_the_one_begun_is_ended_first() -> None:
    engine = FakeEngine()
    for request_id in (1, 2, 3):
        engine.add(request_id, 512)
    assert run(engine) == [1, 2, 3]
    assert [s.tokens for s in engine.given] == list(range(64, 512, 64)) * 3


def test_a_line_of_long_prompts_does_not_keep_a_short_one_waiting() -> None:
    engine = FakeEngine()
    for request_id in range(16):
        engine.add(request_id, 800)
    assert run(engine, {150: (100, 50)}).index(100) == 12  # after 150 steps of 64 tokens: it waits for none of the rest


@settings(deadline=None)  # hundreds of steps
@given(
    tokens=st.integers(200, 1000),
    others=st.integers(65, 200),
    kind=st.sampled_from([TEXT, PICTURES]),
)
def test_a_long_prompt_lets_only_so_much_pass(tokens: int, others: int, kind: Kind) -> None:
    engine = FakeEngine()
    engine.add(0, tokens, kind=kind)
    # others come without end, one before every step
    out = run(engine, {count: (count + 1, others) for count in range(300)})
    # while so many times its tokens passed it, and it had slices itself; whole blocks fill a step by more than half
    came_in_time = (kind.patience * tokens + tokens) / 33 + 3
    assert out.index(0) <= came_in_time


@given(
    prompts=st.lists(st.tuples(st.integers(1, 900), st.floats(0, 1)), max_size=6),
    cancels=st.sets(st.integers(0, 5)),
    rooms=st.lists(st.integers(32, 300), min_size=1),
)
def test_every_prompt_comes_out_once_with_all_its_tokens_and_no_step_is_larger_than_its_room(
    prompts: list[tuple[int, float]], cancels: set[int], rooms: list[int]
) -> None:
    engine = FakeEngine()
    for request_id, (tokens, cached) in enumerate(prompts):
        engine.add(request_id, tokens, int(cached * (tokens - 1)))
    for request_id in cancels:
        engine.slices.cancel(request_id)
    out, total = [], 0
    for number in range(1000):
        room = rooms[number % len(rooms)]
        ready, tokens = engine.step(room)
        assert tokens <= room
        out += ready
        total += tokens
    kept = [n for n in range(len(prompts)) if n not in cancels]
    assert sorted(out) == kept
    assert total == sum(prompts[n][0] - int(prompts[n][1] * (prompts[n][0] - 1)) // 32 * 32 for n in kept)


@pytest.mark.server
def test_real_engine_gives_the_same_tokens_and_a_short_prompt_does_not_wait_for_a_long_one(
    demo_artifacts: Path,
) -> None:
    rng = np.random.default_rng(3)
    long, short = (rng.integers(1000, 20_000, count).astype(np.int32) for count in (300, 20))

    def answers(slice_tokens: int) -> tuple[dict[int, list[int]], list[int]]:
        engine = LlmEngine(llm_config(demo_artifacts, prefill_slice_tokens=slice_tokens, prefill_tokens=64))
        submit(engine, 1, long)
        engine.step()
        submit(engine, 2, short)
        tokens: dict[int, list[int]] = {}
        while engine.busy:
            report = engine.step()
            rest = iter([] if report is None else report.tokens.tolist())
            counted = [] if report is None else zip(report.request_ids.tolist(), report.token_counts, strict=True)
            for request_id, count in counted:
                tokens.setdefault(request_id, []).extend(islice(rest, int(count)))
        return tokens, list(tokens)

    whole, whole_order = answers(0)
    sliced, sliced_order = answers(64)
    assert sliced == whole
    assert (whole_order, sliced_order) == ([1, 2], [2, 1])


def submit(engine: LlmEngine, request_id: int, prompt: NDArray[np.int32]) -> None:
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    tensors = submission_tensors([Submission(request_id, prompt, NO_VISUALS, sampling)])
    names = [name for name in tensors if name != "sampling"]
    meta = {"names": names, "sampling": [text.decode() for text in tensors["sampling"]]}
    assert engine.handle("submit", [tensors[name] for name in names], meta)[1] == {"refused": {}}
