"""Long prompts in slices: what the engine is given, and when."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backends.deployment import load_built_deployment
from python_backends.engines.llm_openvino import LlmEngine
from python_backends.engines.protocol import NO_VISUALS, Submission, submission_tensors
from python_backends.engines.slices import PrefillSlices
from python_backends.sampling import SamplingParams


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
    """Keeps the slices that it was given."""

    def __init__(self, slice_tokens: int) -> None:
        self.given: list[FakeSlice] = []
        self.slices = PrefillSlices(slice_tokens, self._start)

    def _start(self, embeddings: np.ndarray) -> FakeSlice:
        self.given.append(FakeSlice(embeddings.shape[1]))
        return self.given[-1]

    def add(self, request_id: int, tokens: int) -> None:
        self.slices.add(request_id, np.zeros((1, tokens, 2), np.float32))


def test_only_prompts_longer_than_a_slice_are_sliced_and_none_when_it_is_off() -> None:
    assert [PrefillSlices(64, FakeSlice).takes(n) for n in (64, 65)] == [False, True]  # type: ignore[arg-type]
    assert not PrefillSlices(0, FakeSlice).takes(10_000)  # type: ignore[arg-type]


def test_one_slice_at_a_time_and_the_whole_prompt_when_only_its_last_is_left() -> None:
    engine = FakeEngine(64)
    engine.add(7, 150)
    assert engine.slices.next_ready() is None
    assert engine.slices.next_ready() is None  # the first is still running
    engine.given[0].done = True
    assert engine.slices.next_ready() is None
    engine.given[1].done = True
    ready = engine.slices.next_ready()
    assert ready is not None
    assert (ready[0], ready[1].shape[1]) == (7, 150)
    assert [s.tokens for s in engine.given] == [64, 128]
    assert engine.slices.next_ready() is None


def test_cancelled_prompt_ends_its_slice_and_leaves_the_others_their_turn() -> None:
    engine = FakeEngine(64)
    for request_id in (1, 2, 3):
        engine.add(request_id, 100)
    engine.slices.next_ready()
    engine.slices.cancel(2)
    engine.slices.cancel(1)
    assert engine.given[0].cancelled
    engine.slices.next_ready()
    engine.given[1].done = True
    ready = engine.slices.next_ready()
    assert ready is not None
    assert ready[0] == 3


def run(engine: FakeEngine, arrivals: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """Step until nothing is left; arrivals: before which slice (by count) comes which prompt (request id, tokens)."""
    arrivals, out = dict(arrivals or {}), []
    for _ in range(5000):
        if (coming := arrivals.pop(len(engine.given), None)) is not None:
            engine.add(*coming)
        ready = engine.slices.next_ready()
        if ready is not None:
            out.append(ready[0])
        elif engine.given and not engine.given[-1].done:
            engine.given[-1].done = True
        else:
            break
    return out


def test_the_shortest_goes_first_also_when_it_comes_later() -> None:
    engine = FakeEngine(64)
    engine.add(1, 3000)
    engine.add(2, 300)
    assert run(engine, {3: (3, 200), 30: (4, 100)}) == [2, 3, 4, 1]


def test_equals_go_in_order_and_the_one_begun_is_ended_first() -> None:
    engine = FakeEngine(64)
    for request_id in (1, 2, 3):
        engine.add(request_id, 500)
    assert run(engine) == [1, 2, 3]
    assert [s.tokens for s in engine.given] == list(range(64, 500, 64)) * 3


@settings(deadline=None)  # hundreds of steps
@given(tokens=st.integers(200, 3000), others=st.integers(65, 200))
def test_a_long_prompt_lets_only_so_much_pass(tokens: int, others: int) -> None:
    engine = FakeEngine(64)
    engine.add(0, tokens)
    # others come without end, one before every slice
    out = run(engine, {count: (count + 1, others) for count in range(400)})
    came_in_time = (4 * tokens + tokens) / 64 + 3  # while four times its tokens passed it, and it had slices itself
    assert out.index(0) <= came_in_time


@given(prompts=st.lists(st.integers(65, 900), max_size=6), cancels=st.sets(st.integers(0, 5)))
def test_every_prompt_comes_out_once_after_all_its_slices(prompts: list[int], cancels: set[int]) -> None:
    engine = FakeEngine(64)
    for request_id, tokens in enumerate(prompts):
        engine.add(request_id, tokens)
    for request_id in cancels:
        engine.slices.cancel(request_id)
    kept = [n for n in range(len(prompts)) if n not in cancels]
    assert sorted(run(engine)) == kept
    assert sorted(s.tokens for s in engine.given) == sorted(t for n in kept for t in range(64, prompts[n], 64))


@pytest.mark.server
def test_real_engine_gives_the_same_tokens_and_a_short_prompt_does_not_wait_for_a_long_one(
    demo_artifacts: Path,
) -> None:
    rng = np.random.default_rng(3)
    long, short = (rng.integers(1000, 20_000, count).astype(np.int32) for count in (300, 20))

    def answers(slice_tokens: int) -> tuple[dict[int, list[int]], list[int]]:
        built = load_built_deployment(demo_artifacts)
        changes = {"prefill_slice_tokens": slice_tokens, "prefill_tokens": 32}
        text = built.pools.text.model_copy(update=changes)
        deployment = built.model_copy(update={"pools": built.pools.model_copy(update={"text": text})})
        config = {"artifacts": str(demo_artifacts), "deployment": deployment.model_dump(mode="json")}
        engine = LlmEngine(config)
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
