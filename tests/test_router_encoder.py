"""Requests that share, lose and give up images in any order: nobody sees another image's tokens, no page stays held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backends.embeddings.pool import PAGE_TOKENS, EmbeddingPool
from python_backends.embeddings.region import PoolReader
from python_backends.errors import ServingError, unavailable
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.metrics import Metric, Metrics
from python_backends.router.encoder import Encoder, Picture
from python_backends.router.fan_out import FanOut
from tests.fakes.stages import BROKEN, HIDDEN, TOKENS, FakeStages, gif


class Nowhere:
    """A metrics registry that forgets."""

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        pass


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([1, 2, 3, 4, BROKEN]), min_size=1, max_size=3),
        st.sampled_from(["answered", "answered", "cancelled", "submitted again"]),
    ),
    min_size=1,
    max_size=8,
)


async def nothing_held(pool: EmbeddingPool) -> None:
    while pool.usage.held:
        await asyncio.sleep(0.001)


async def live(requests: list[tuple[list[int], str]], pages: int, deaths: set[int]) -> None:
    stages, reader, metrics = FakeStages(), PoolReader(), Metrics(Nowhere())
    calls = iter(range(1000))

    def die(number: int) -> None:
        if next(calls) in deaths:
            raise unavailable("vision_encoder: gone")

    stages.on_embed = die
    pool = EmbeddingPool(pages * PAGE_TOKENS * HIDDEN * 2, HIDDEN, b"model")
    encoder = Encoder(stages, 2, pool, metrics)
    fan_out = FanOut(encoder, ImageLimits(1 << 20, 1 << 20), Layout(8, TOKENS), 0, metrics)

    async def one(numbers: list[int], end: str) -> None:
        images = fan_out.look_up([gif(number) for number in numbers])
        try:
            for _ in range(2 if end == "submitted again" else 1):
                await images.embed_again()
                await asyncio.sleep(0)  # others may evict now
                target = np.zeros((TOKENS * len(numbers), HIDDEN), np.float32)
                images.rows().copy_to(target, np.arange(len(target)), reader)
                assert target[:, 0].tolist() == [float(number) for number in numbers for _ in range(TOKENS)]
                images.release()
        finally:
            images.release()

    tasks = [asyncio.create_task(one(numbers, end)) for numbers, end in requests]
    await asyncio.sleep(0)
    for task, (_, end) in zip(tasks, requests, strict=True):
        if end == "cancelled":
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.wait_for(nothing_held(pool), 10)  # calls that everybody gave up go on for a moment
    for result, (numbers, end) in zip(results, requests, strict=True):
        if not deaths and end != "cancelled" and BROKEN not in numbers:
            assert result is None
        else:
            assert result is None or isinstance(result, ServingError | asyncio.CancelledError)
    encoder.close()
    metrics.close()


def test_pictures_that_everybody_gave_up_before_their_call_began_are_not_encoded() -> None:
    stages, metrics = FakeStages(), Metrics(Nowhere())
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        entered.set()
        assert go_on.wait(20)

    stages.on_embed = hold

    async def scenario() -> None:
        pool = EmbeddingPool(64 * PAGE_TOKENS * HIDDEN * 2, HIDDEN, b"model")
        encoder = Encoder(stages, 1, pool, metrics)
        pictures = [Picture(gif(number), pool.key(gif(number)), TOKENS) for number in (1, 2, 3)]
        tasks = [asyncio.create_task(encoder.obtain(picture)) for picture in (*pictures, pictures[2])]
        while not entered.is_set():
            await asyncio.sleep(0.001)
        for task in tasks[:3]:
            task.cancel()
        await asyncio.wait(tasks[:3])
        again = asyncio.create_task(encoder.obtain(pictures[1]))  # one that was given up a moment ago
        go_on.set()
        for task in (tasks[3], again):
            encoder.release(await task)
        await asyncio.wait_for(nothing_held(pool), 10)
        encoder.close()

    asyncio.run(scenario())
    metrics.close()
    assert sorted(stages.embedded) == [1, 2, 3]
    assert stages.embedded[0] == 1


def test_pictures_of_cancelled_requests_never_reach_the_stage() -> None:
    stages, metrics = FakeStages(), Metrics(Nowhere())
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        entered.set()
        assert go_on.wait(20)

    stages.on_embed = hold

    async def scenario() -> None:
        pool = EmbeddingPool(64 * PAGE_TOKENS * HIDDEN * 2, HIDDEN, b"model")
        encoder = Encoder(stages, 1, pool, metrics)
        pictures = [Picture(gif(number), pool.key(gif(number)), TOKENS) for number in range(20)]
        tasks = [asyncio.create_task(encoder.obtain(picture)) for picture in pictures]
        while not entered.is_set():
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        go_on.set()
        await asyncio.wait_for(nothing_held(pool), 10)
        encoder.close()

    asyncio.run(scenario())
    metrics.close()
    assert stages.embedded == [0]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(0, 4), st.sets(st.integers(0, 12), max_size=4))
def test_tokens_are_right_and_no_page_stays_held(
    requests: list[tuple[list[int], str]], pages: int, deaths: set[int]
) -> None:
    asyncio.run(live(requests, pages, deaths))
