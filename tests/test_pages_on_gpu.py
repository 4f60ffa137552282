"""Visual tokens that stay on a GPU, between real processes on a fake one: who writes, who reads, what is refused."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint, Tiling
from python_backends.deployment import BUILT_FILE, parse_deployment
from python_backends.embeddings.on_gpu import DevicePool
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.embeddings.region import PAGE
from python_backends.embeddings.target import PAGE_TOKENS, PageTarget
from python_backends.engines.vision_stage import Encoded, EncodeStage, Pictures
from python_backends.errors import ServingError, Status
from python_backends.workers.targets import ENCODE, MissingRuntime
from tests.fakes import cuda, torch_cpu
from tests.fakes.gpu_router import RouterProcess
from tests.test_vision_stage import HIDDEN, SIDE, TOKENS, tiny_model
from tests.waiting import until

PAGES = 256


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.install(monkeypatch)


@pytest.fixture
def router() -> Iterator[RouterProcess]:
    made = RouterProcess(PAGES, HIDDEN)
    yield made
    made.worker.close()


def take(address: str, pages: np.ndarray, count: int) -> np.ndarray:
    values: np.ndarray = DevicePool(torch_cpu).take(address, pages, count).values
    return values


def rows(count: int, value: float) -> np.ndarray:
    return (value + np.arange(count * HIDDEN).reshape(count, HIDDEN) / 64).astype(np.float16)


def stage_in(folder: Path, tiling: Tiling | None = None) -> EncodeStage:
    """The encode stage of profile gpu; one tile is a picture, or with `tiling` several are."""
    checkpoint = Checkpoint(
        name="tiny", image_size=SIDE, tokens_per_tile=TOKENS, hidden_size=HIDDEN, vocab_size=100, tiling=tiling,
        kv_bytes_per_token=64, context_tokens=2000, image_token="<image>", eos_token_ids=(0,),
    )  # fmt: skip
    deployment = parse_deployment({"checkpoint": "c", "profile": "gpu"}, "test")
    (folder / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (folder / BUILT_FILE).write_text(deployment.model_dump_json())
    tiny_model(folder / "vision")
    np.save(folder / "vision" / "row_end.npy", np.full(HIDDEN, 500, np.float16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODE, "gpu", "tests.fakes.gpu_workers:Encoder")  # type: ignore[arg-type]
        stage = EncodeStage("vision_encoder", folder)
    stage.start()
    return stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeStage]:
    made = stage_in(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()


# a picture is an overview and a canvas of tiles
TILING = Tiling(canvases=((SIDE * 2, SIDE), (SIDE * 6, SIDE * 6)), max_tiles=None)


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeStage]:
    made = stage_in(tmp_path_factory.mktemp("tiled"), TILING)
    yield made
    made.close()


def pictures(*brightness: int, size: tuple[int, int] = (1, 1), target: PageTarget | None = None) -> Pictures:
    """One picture, of so many tiles."""
    values = np.array(brightness, np.uint8).reshape(1, -1, 1, 1, 1)
    pixels = np.ascontiguousarray(np.broadcast_to(values, (1, len(brightness), SIDE, SIDE, 3)))
    return Pictures(pixels, np.array([size], np.int32), target)


def encoded(answer: Encoded | ServingError) -> np.ndarray:
    assert isinstance(answer, Encoded), answer
    return answer.visual_tokens[0]


def test_a_batch_is_written_where_the_router_says_and_read_from_there(
    stage: EncodeStage, router: RouterProcess
) -> None:
    targets = [router.allocate(str(n), TOKENS) for n in range(5)]
    answers = stage.encode([pictures(10 * n, target=target) for n, target in enumerate(targets)])
    assert [encoded(answer).shape for answer in answers] == [(0, HIDDEN)] * 5
    for n in range(5):
        address, pages = router.pages("written", str(n))
        assert (take(address, pages, TOKENS) == 10 * n).all()
        assert (router.read(str(n)) == 10 * n).all(), "as a copy for who can't reach the GPU"


def test_pictures_with_and_without_pages_share_a_call_of_the_stage(stage: EncodeStage, router: RouterProcess) -> None:
    target = router.allocate("a", TOKENS)
    loose, placed, bad = stage.encode(
        [pictures(7), pictures(9, target=target), Pictures(np.zeros((1, 1, 3, 3, 3), np.uint8), np.ones((1, 2)))]
    )
    assert (encoded(loose) == 7).all() and len(encoded(loose)) == TOKENS
    assert len(encoded(placed)) == 0
    assert (take(*router.pages("written", "a"), TOKENS) == 9).all()
    assert isinstance(bad, ServingError)


@pytest.mark.parametrize("size", [(SIDE * 2, SIDE), (SIDE * 6, SIDE * 6), (SIDE * 6, SIDE * 4 + 5)])
def test_tiles_with_rows_that_end_are_put_together_as_in_host_memory(
    tiled: EncodeStage, router: RouterProcess, size: tuple[int, int]
) -> None:
    """More tiles than a call of the worker takes; the picture in the middle goes over its edge."""
    many = 3 if size[1] == SIDE else 37
    requests = [pictures(*range(n, n + many), size=size) for n in range(3)]
    expected = [encoded(answer) for answer in tiled.encode(requests)]
    targets = [router.allocate(str(n), len(tokens)) for n, tokens in enumerate(expected)]
    placed = [Pictures(r.tiles, r.sizes, target) for r, target in zip(requests, targets, strict=True)]
    assert [len(encoded(answer)) for answer in tiled.encode(placed)] == [0, 0, 0]
    for n, tokens in enumerate(expected):
        assert (tokens == 500).any(), "an end of a row"
        np.testing.assert_array_equal(take(*router.pages("written", str(n)), len(tokens)), tokens)


def test_tokens_between_rows_come_back_and_the_router_writes_them(tmp_path: Path, router: RouterProcess) -> None:
    """LLaVA-OneVision scales the features of large pictures."""
    shrinking = stage_in(tmp_path, TILING.model_copy(update={"max_tiles": 4}))
    size = (SIDE * 6, SIDE * 6)
    expected = encoded(shrinking.encode([pictures(*range(37), size=size)])[0])
    target = router.allocate("a", len(expected))
    answer = encoded(shrinking.encode([pictures(*range(37), size=size, target=target)])[0])
    shrinking.close()
    np.testing.assert_array_equal(answer, expected)
    address, pages = router.pages("fill", "a", answer)
    np.testing.assert_array_equal(take(address, pages, len(expected)), expected)


def test_pages_that_were_freed_hold_the_next_picture_and_a_late_reader_is_refused(
    stage: EncodeStage, router: RouterProcess
) -> None:
    most = PAGES * PAGE_TOKENS
    late = router.pages("fill", "a", rows(most, 1.0)) if router.allocate("a", most) else None
    assert late is not None
    router.pages("release", "a")
    target = router.allocate("b", TOKENS)  # evicts a
    with pytest.raises(ServingError, match="given to another image") as error:
        take(*late, most)
    assert error.value.status is Status.UNAVAILABLE
    stage.encode([pictures(3, target=target)])
    assert (take(*router.pages("written", "b"), TOKENS) == 3).all()


def test_an_encoder_that_died_opens_the_pages_anew(stage: EncodeStage, router: RouterProcess) -> None:
    stage.encode([pictures(3, target=router.allocate("a", TOKENS))])
    first = router.pages("written", "a")
    worker = stage._worker
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert until(lambda: worker.restarts == 1 and worker.ready, 20)
    assert (take(*first, TOKENS) == 3).all(), "they are not the encoder's"
    stage.encode([pictures(4, target=router.allocate("b", TOKENS))])
    assert (take(*router.pages("written", "b"), TOKENS) == 4).all()


def test_a_router_that_died_takes_its_pages_along(stage: EncodeStage, router: RouterProcess) -> None:
    stage.encode([pictures(3, target=router.allocate("a", TOKENS))])
    address, pages = router.pages("written", "a")
    reader = DevicePool(torch_cpu)
    assert (reader.take(address, pages, TOKENS).values == 3).all()
    assert router.worker.pid is not None
    os.kill(router.worker.pid, signal.SIGKILL)
    assert until(lambda: router.worker.restarts == 1 and router.worker.ready, 20)
    with pytest.raises(ServingError, match=r"can't be opened|pool is gone") as error:
        take(address, pages, TOKENS)
    assert error.value.status is Status.UNAVAILABLE
    stage.encode([pictures(4, target=router.allocate("a", TOKENS))])
    again = router.pages("written", "a")
    assert again[0] != address
    assert (reader.take(*again, TOKENS).values == 4).all(), "readers and writers go over to the new one"
    assert len(cuda.Device.opened) == 1, "and have closed the old one"


def test_what_is_not_finite_is_refused_where_it_is_read(router: RouterProcess) -> None:
    router.allocate("a", 3)
    address, pages = router.pages("fill", "a", np.full((3, HIDDEN), np.inf, np.float16))
    with pytest.raises(ServingError, match="visual_tokens: hold values that are not finite"):
        take(address, pages, 3)


@pytest.mark.parametrize("page", [-1, PAGES])
def test_lists_and_targets_that_point_outside_are_refused(stage: EncodeStage, router: RouterProcess, page: int) -> None:
    target = router.allocate("a", TOKENS)
    address, pages = router.pages("written", "a")
    pages[0, PAGE] = page
    with pytest.raises(ServingError, match="does not fit the embedding pool"):
        take(address, pages, TOKENS)
    (answer,) = stage.encode([pictures(1, target=PageTarget(target.pool, (PAGES,), TOKENS))])
    assert isinstance(answer, ServingError) and answer.message == f"pages: must be below {PAGES}, of rows of 8 elements"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pool": "x"}, "pool: is not the address of an embedding pool"),
        ({"pool": "1/2/secret"}, "pages: the router's embedding pool can't be opened|pool is gone"),
        ({"tokens": TOKENS + 1}, f"page_rows: {TOKENS + 1}, where the picture becomes {TOKENS} visual tokens"),
    ],
)
def test_targets_that_nobody_gave_are_refused(
    stage: EncodeStage, router: RouterProcess, change: dict[str, Any], sentence: str
) -> None:
    target = router.allocate("a", TOKENS)
    wrong = PageTarget(**{**vars(target), **change})
    bad, good = stage.encode([pictures(1, target=wrong), pictures(2, target=target)])
    assert isinstance(bad, ServingError)
    assert re.search(sentence, bad.message)
    assert len(encoded(good)) == 0


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True), st.data())
def test_a_target_survives_its_way_and_names_each_row_once(pages: list[int], data: st.DataObject) -> None:
    tokens = data.draw(st.integers(1, len(pages) * PAGE_TOKENS))
    target = PageTarget("1/2/a", tuple(pages), tokens)
    assert PageTarget.parse({"alone": True, **target.parameters()}) == target
    numbers = target.rows()
    assert len(set(numbers.tolist())) == len(numbers) == tokens
    assert [row // PAGE_TOKENS for row in numbers[::PAGE_TOKENS]] == pages[: -(-tokens // PAGE_TOKENS)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pages": "1 x"},
        {"pages": "-1 1"},
        {"pages": "1 134217728"},
        {"pages": ""},
        {"page_rows": "0"},
        {"page_rows": "33"},
        {"page_rows": "x"},
    ],
)
def test_parameters_that_are_no_target_are_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(ServingError, match=r"^page") as error:
        PageTarget.parse({"pool": "1/2/a", "pages": "1 2", "page_rows": "20", **wrong})
    assert error.value.status is Status.INVALID_ARG
    assert PageTarget.parse({"alone": True}) is None


ONE = {"gpus": [0]}


@pytest.mark.parametrize(
    ("deployment", "gpu"),
    [
        ({"profile": "gpu"}, 0),
        ({"profile": "gpu", "pools": {"vision": {"gpus": [3]}, "text": {"gpus": [3]}}}, 3),
        ({"profile": "gpu", "cache": {"memory": "host"}}, None),
        ({"profile": "gpu", "pools": {"vision": {"gpus": [1]}}}, None),
        ({"profile": "gpu", "pools": {"vision": {"gpus": [0, 1]}, "text": {"gpus": [0, 1], "replicas": 2}}}, None),
        ({"profile": "gpu", "pools": {"vision": ONE, "text": {"gpus": [0, 1], "tensor_parallel": 2}}}, None),
        ({"profile": "cpu"}, None),
    ],
)
def test_pages_are_on_the_gpu_that_both_pools_share(deployment: dict[str, Any], gpu: int | None) -> None:
    assert parse_deployment({"checkpoint": "c", **deployment}, "test").pages_gpu == gpu


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    size = PAGE_TOKENS * HIDDEN * 2
    monkeypatch.setattr(cuda.Device, "free_bytes", 1 << 20)
    with pytest.raises(MissingRuntime, match=r"can't have 2 MB \(cache.encoder_mb\) on GPU 0 \(cudaErrorMemoryAlloc"):
        EmbeddingPool(2 << 20, HIDDEN, b"model", gpu=0)
    with pytest.raises(MissingRuntime, match=r"can't use GPU 1 \(cudaErrorInvalidDevice\): .* or set cache.memory"):
        EmbeddingPool(size, HIDDEN, b"model", gpu=1)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(MissingRuntime, match=r"cuda-python is not installed .* or set cache.memory: host"):
        EmbeddingPool(size, HIDDEN, b"model", gpu=0)


def test_a_pool_of_no_bytes_asks_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.Device, "count", 0)
    pool = EmbeddingPool(0, HIDDEN, b"model", gpu=0)
    assert pool.allocate(b"a", 1) is None
    pool.close()
