"""The TensorRT runtime against a fake TensorRT: which context or graph runs a batch, and whose tokens are whose."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engines.tensorrt_encoder import choose_run
from python_backends.engines.vision_tensorrt import MODEL_FILE, VisionWorker
from python_backends.workers.targets import MissingRuntime
from tests.fakes import cuda
from tests.fakes import tensorrt as fake
from tests.fakes.gpu_router import RouterProcess

PROFILES = [[1, 4, 4], [5, 16, 16]]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)


def worker_in(folder: Path, graphs: tuple[int, ...] = (), **plan: object) -> VisionWorker:
    (folder / MODEL_FILE).write_text(json.dumps({"profiles": PROFILES, **plan}))
    worker = VisionWorker({"folder": str(folder), "graph_batches": graphs})
    fake.RUNS.clear()
    return worker


def tiles(*brightness: int) -> np.ndarray:
    values = np.array(brightness, np.uint8).reshape(-1, 1, 1, 1)
    return np.ascontiguousarray(np.broadcast_to(values, (len(brightness), fake.SIDE, fake.SIDE, 3)))


def means(worker: VisionWorker, *arrays: np.ndarray) -> list[list[float]]:
    outputs, meta = worker.handle("encode", list(arrays), {})
    assert meta["encode_ms"] > 0
    assert all(output.dtype == np.float16 and output.shape[1] == fake.HIDDEN for output in outputs)
    return [output[:: fake.TOKENS, 0].tolist() for output in outputs]


def test_tiles_of_several_pictures_are_one_batch_of_the_profile_that_they_fit(tmp_path: Path) -> None:
    worker = worker_in(tmp_path)
    assert means(worker, tiles(1, 2), tiles(3)) == [[1, 2], [3]]
    assert fake.RUNS == [(0, 3)]
    assert means(worker, tiles(*range(7))) == [list(range(7))]
    assert fake.RUNS[1:] == [(1, 7)]


def test_more_tiles_than_the_plan_takes_go_in_several_batches(tmp_path: Path) -> None:
    worker = worker_in(tmp_path)
    assert means(worker, tiles(*range(35))) == [list(range(35))]
    assert fake.RUNS == [(1, 16), (1, 16), (0, 3)]


def test_usual_sizes_are_replayed_as_graphs_others_padded_to_the_next(tmp_path: Path) -> None:
    worker = worker_in(tmp_path, graphs=(1, 2, 4, 8, 32))
    for count in (1, 3, 8):
        assert means(worker, tiles(*range(count))) == [list(range(count))]
    assert fake.RUNS == ["graph"] * 3
    assert means(worker, tiles(*range(9))) == [list(range(9))], "beyond the largest graph that the plan can run"
    assert fake.RUNS[3:] == [(1, 9)]


def test_a_smaller_batch_after_a_larger_one_shows_nothing_of_it(tmp_path: Path) -> None:
    worker = worker_in(tmp_path, graphs=(4,))
    assert means(worker, tiles(9, 9, 9, 9)) == [[9, 9, 9, 9]]
    assert means(worker, tiles(1, 2, 3)) == [[1, 2, 3]]


def test_rows_go_from_its_batches_into_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches; each token of a tile has its own place, in no order, and the last one is an end of a row."""
    cuda.install(monkeypatch)
    worker, router = worker_in(tmp_path), RouterProcess(pages=8, hidden=fake.HIDDEN)
    count = 20 * fake.TOKENS + 1
    target = router.allocate("a", count)
    order = np.random.default_rng(0).permutation(count).astype(np.int32)
    sources = np.append(np.arange(count - 1, dtype=np.int32), np.int32(-1))
    row_end = np.full((1, fake.HIDDEN), 99, np.float16)
    arrays, meta = worker.handle(
        "encode_into", [sources, target.rows()[order], row_end, tiles(*range(20))], {"pool": target.pool}
    )
    assert arrays == [] and meta["encode_ms"] > 0
    assert fake.RUNS == [(1, 16), (0, 4)]
    written = router.read("a")
    router.worker.close()
    expected = np.append(np.repeat(np.arange(20), fake.TOKENS), 99)
    np.testing.assert_array_equal(written[order], np.repeat(expected[:, np.newaxis], fake.HIDDEN, axis=1))


def test_a_worker_that_lost_its_gpu_ends_and_one_that_only_failed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor starts another, with a CUDA context that works; an error alone would come back for ever."""
    worker = worker_in(tmp_path)
    with pytest.raises(ValueError, match="unknown operation"):
        worker.handle("sing", [tiles(1)], {})
    assert means(worker, tiles(1)) == [[1]]
    monkeypatch.setattr(fake.Cuda, "lost", True)
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit, match="1"):
        worker.handle("encode", [tiles(1)], {})


def test_tokens_of_an_earlier_batch_stay_what_they_were(tmp_path: Path) -> None:
    """The device buffer is used again."""
    worker = worker_in(tmp_path)
    (first,), _ = worker.handle("encode", [tiles(5)], {})
    worker.handle("encode", [tiles(6)], {})
    assert first[0, 0] == 5


@given(
    bounds=st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(sorted),
    graphs=st.lists(st.integers(1, 64), max_size=6, unique=True).map(sorted),
    data=st.data(),
)
def test_every_batch_has_a_run_that_holds_it_within_its_profile(
    bounds: list[int], graphs: list[int], data: st.DataObject
) -> None:
    profiles = list(zip([1, *(bound + 1 for bound in bounds[:-1])], bounds, strict=True))
    graphs = [size for size in graphs if size <= bounds[-1]]
    count = data.draw(st.integers(1, bounds[-1]))
    run = choose_run(count, profiles, graphs)
    low, high = profiles[run.profile]
    assert low <= run.batch <= high
    assert run.batch >= count
    assert run.graph == any(size >= count for size in graphs)
    assert not run.graph or run.batch in graphs


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "model.plan is not there: build again"),
        ("other version", "model.plan does not load: build it again on this machine"),
        ('{"profiles": [[1, 1, 1]], "tensors": ["a", "b"]}', "has the tensors a, b, not tiles, visual_tokens"),
    ],
)
def test_a_plan_that_can_not_be_used_is_named(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / MODEL_FILE).write_text(content)
    with pytest.raises(MissingRuntime, match=sentence):
        VisionWorker({"folder": str(tmp_path), "graph_batches": ()})


def test_without_tensorrt_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(MissingRuntime, match=r"TensorRT is not installed .*containers/Dockerfile"):
        VisionWorker({"folder": str(tmp_path), "graph_batches": ()})
