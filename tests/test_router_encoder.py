"""Requests that share, lose and give up images in any order: nobody sees another image's tokens, no page stays held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backends.embeddings.on_gpu import DevicePool
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.embeddings.region import PoolReader
from python_backends.embeddings.target import PAGE_TOKENS, PageTarget
from python_backends.engines.protocol import GRID, IMAGE_TOKENS, VisualRows
from python_backends.errors import ServingError, unavailable
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.media.tiling import PatchGrid
from python_backends.metrics import Metric, Metrics
from python_backends.router.encoder import Encoder, Picture, Visual
from python_backends.router.fan_out import FanOut
from python_backends.router.stages import Embedding
from tests.fakes import cuda, torch_cpu
from tests.fakes.stages import BROKEN, HIDDEN, TOKENS, FakeStages, Hold, gif


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


def test_grids_of_pictures_that_keep_their_shape_go_to_the_llm() -> None:
    """From their headers: of 28 x 1 pixels, which are scaled up."""

    async def main() -> None:
        stages, metrics = FakeStages(), Metrics(Nowhere())
        stages.tokens = 11
        encoder = Encoder(stages, 2, EmbeddingPool(0, HIDDEN, b"model"), metrics)
        layout = Layout(28, native=PatchGrid())
        fan_out = FanOut(encoder, ImageLimits(1 << 20, 1 << 20), layout, 0, metrics)
        images = fan_out.look_up(fan_out.look_at([gif(28), gif(28)]))
        assert images.tokens == [11, 11]
        await images.embed_again()
        told = images.rows().images
        assert told[:, IMAGE_TOKENS].tolist() == [11, 11]
        assert told[:, GRID].tolist() == [[1, 11]] * 2
        images.release()
        encoder.close()

    asyncio.run(main())


class OnGpu(FakeStages):
    """Stages whose encoder writes into the pages that it is told, also when it dies of it."""

    def __init__(self) -> None:
        super().__init__()
        self._device = DevicePool(torch_cpu)
        self._worker = threading.Lock()  # it has one thread; here pictures come from several

    def embed(self, image: bytes, alone: bool, target: PageTarget | None = None) -> Embedding:
        if target is None:
            return super().embed(image, alone)
        self._write(target, -1)
        made = super().embed(image, alone)
        self._write(target, int(made.visual_tokens[0, 0]))
        return replace(made, visual_tokens=made.visual_tokens[:0])

    def _write(self, target: PageTarget, value: int) -> None:
        rows = torch_cpu.Tensor(np.full((1, HIDDEN), value, np.float16), is_cuda=True)
        with self._worker:
            self._device.put(target.pool, target.rows(), rows, np.zeros(target.tokens, np.int32))


def read(visuals: VisualRows, count: int, gpu: bool) -> NDArray[np.float32]:
    """As a decoder does."""
    if gpu and len(visuals.pages):
        return np.asarray(DevicePool(torch_cpu).take(visuals.pool, visuals.pages, count).values, np.float32)
    target = np.zeros((count, HIDDEN), np.float32)
    visuals.copy_to(target, np.arange(count), PoolReader())
    return target


async def nothing_held(pool: EmbeddingPool) -> None:
    while pool.usage.held:
        await asyncio.sleep(0.001)


async def live(requests: list[tuple[list[int], str]], pages: int, deaths: set[int], gpu: bool) -> None:
    stages, metrics = OnGpu() if gpu else FakeStages(), Metrics(Nowhere())
    calls = iter(range(1000))

    def die(number: int) -> None:
        if next(calls) in deaths:
            raise unavailable("vision_encoder: gone")

    stages.on_embed = die
    pool = EmbeddingPool(pages * PAGE_TOKENS * HIDDEN * 2, HIDDEN, b"model", gpu=0 if gpu else None)
    encoder = Encoder(stages, 2, pool, metrics)
    fan_out = FanOut(encoder, ImageLimits(1 << 20, 1 << 20), Layout(8, TOKENS), 0, metrics)

    async def one(numbers: list[int], end: str) -> None:
        images = fan_out.look_up(fan_out.look_at([gif(number) for number in numbers]))
        try:
            for _ in range(2 if end == "submitted again" else 1):
                await images.embed_again()
                await asyncio.sleep(0)  # others may evict now
                target = read(images.rows(), TOKENS * len(numbers), gpu)
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


Ask = Callable[[int], asyncio.Task[Visual]]


def embedded_in(scenario: Callable[[Ask, Hold], Awaitable[list[Visual]]]) -> list[int]:
    """The pictures that reach a stage whose first call is held; the scenario asks for them, and gives those it got."""
    stages, metrics = FakeStages(), Metrics(Nowhere())
    stages.on_embed = hold = Hold()

    async def run() -> None:
        pool = EmbeddingPool(64 * PAGE_TOKENS * HIDDEN * 2, HIDDEN, b"model")
        encoder = Encoder(stages, 1, pool, metrics)

        def ask(number: int) -> asyncio.Task[Visual]:
            return asyncio.create_task(encoder.obtain(Picture(gif(number), pool.key(gif(number)), TOKENS)))

        for visual in await scenario(ask, hold):
            encoder.release(visual)
        await asyncio.wait_for(nothing_held(pool), 10)
        encoder.close()

    asyncio.run(run())
    metrics.close()
    return stages.embedded


def test_pictures_that_everybody_gave_up_before_their_call_began_are_not_encoded() -> None:
    async def scenario(ask: Ask, hold: Hold) -> list[Visual]:
        given_up, stays = [ask(1), ask(2), ask(3)], ask(3)
        await hold.entered()
        for task in given_up:
            task.cancel()
        await asyncio.wait(given_up)
        again = ask(2)  # one that was given up a moment ago
        hold.go_on()
        return [await stays, await again]

    embedded = embedded_in(scenario)
    assert sorted(embedded) == [1, 2, 3]
    assert embedded[0] == 1


def test_pictures_of_cancelled_requests_never_reach_the_stage() -> None:
    async def scenario(ask: Ask, hold: Hold) -> list[Visual]:
        tasks = [ask(number) for number in range(20)]
        await hold.entered()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        hold.go_on()
        return []

    assert embedded_in(scenario) == [0]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(0, 4), st.sets(st.integers(0, 12), max_size=4), st.booleans())
def test_tokens_are_right_and_no_page_stays_held(
    requests: list[tuple[list[int], str]], pages: int, deaths: set[int], gpu: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cuda.install(patch)
        patch.setattr(cuda.Device, "opens_own", True)  # encoder and decoder are in the router's process here
        asyncio.run(live(requests, pages, deaths, gpu))
