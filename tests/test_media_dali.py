"""The DALI decode runtime on DALI's CPU operators: the CPU path's pixels, and its refusals. `make test-dali`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.decode_stage import artifacts_in
from perf.decode_stage import decode as answers_of
from python_backends.checkpoint import CHECKPOINT_FILE, NativeResolution, Tiling, load_checkpoint
from python_backends.errors import ServingError
from python_backends.media import stage as stage_module
from python_backends.media.batching import Batcher
from python_backends.media.decode import decode, decode_file
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from python_backends.media.stage import Decoded, DecodeStage
from python_backends.workers import WorkerSpec
from tests.golden.make_media_goldens import PICTURES, picture, sample
from tests.media.make_corpus import FOLDER
from tests.test_media_fidelity import NEAR, goldens, pixel_tensor
from tests.waiting import until

LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)
SIDE = 128


def test_whatever_waits_is_the_next_batch() -> None:
    batches: list[list[int]] = []
    first_runs, go_on = threading.Event(), threading.Event()

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        first_runs.set()
        go_on.wait(5)
        if 13 in items:
            raise ValueError("unlucky")
        return [item * 2 for item in items]

    batcher: Batcher[int, int] = Batcher(run, largest=3)
    results: dict[int, Any] = {}

    def call(item: int) -> None:
        try:
            results[item] = batcher.call(item)
        except ValueError as error:
            results[item] = str(error)

    threads = [threading.Thread(target=call, args=(0,))]
    threads[0].start()
    assert first_runs.wait(5)
    for item in (1, 2, 3, 13):
        threads.append(threading.Thread(target=call, args=(item,)))
        threads[-1].start()
        assert until(lambda: batcher.waiting == len(threads) - 1, 5)
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert batches == [[0], [1, 2, 3], [13]]
    assert results == {0: 0, 1: 2, 2: 4, 3: 6, 13: "unlucky"}


CANVASES = tuple((SIDE * columns, SIDE * rows) for columns, rows in ((1, 2), (2, 1), (2, 2), (3, 1)))
FITS: dict[str, dict[str, Any]] = {
    "squash": {},
    "crop": {"fit": "crop"},
    "pad": {"fit": "pad", "pad_colour": (120, 110, 100)},
    "tiles": {"tiling": Tiling(canvases=CANVASES)},
    "native": {"native": NativeResolution(patch=14, merge=2, window=112, min_pixels=3136, max_pixels=50_000)},
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecodeStage]:
    with staged(tmp_path_factory.mktemp("artifacts")) as decoding:
        yield decoding


@contextmanager
def staged(folder: Path, **checkpoint: Any) -> Iterator[DecodeStage]:
    """The stage as on a GPU, but for the operators' device; `checkpoint` changes its facts."""

    def on_cpu(**fields: Any) -> WorkerSpec:
        config = {**fields["config"], "on_gpu": False}
        return WorkerSpec(**{**fields, "target": "python_backends.media.dali:DaliWorker", "config": config})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_module, "WorkerSpec", on_cpu)
        changed = {"image_size": SIDE, **checkpoint}
        facts = load_checkpoint(artifacts_in(folder, {"threads": 2})).model_copy(update=changed)
        (folder / CHECKPOINT_FILE).write_text(facts.model_dump_json())
        decoding = DecodeStage("image_decode", folder)
    decoding.start()
    yield decoding
    decoding.close()


@pytest.mark.dali
@pytest.mark.parametrize("fit", FITS)
def test_pictures_are_cut_as_on_cpus(tmp_path: Path, fit: str) -> None:
    """Of any shape, lying or not: LLaVA's square, CLIP's middle, padding, LLaVA-NeXT's tiles, Qwen's own size."""
    with staged(tmp_path, **FITS[fit]) as stage:
        layout = Layout.of(load_checkpoint(tmp_path))
        for name in ("jpeg_baseline.jpg", "jpeg_exif6.jpg", "jpeg_exif3.jpg", "jpeg_grey.jpg"):
            file = (FOLDER / name).read_bytes()
            (answer,) = answers_of(stage, [file])
            assert isinstance(answer, Decoded), answer
            wanted = decode_file(file, read_header(file, LIMITS), layout, LIMITS, alone=True)
            assert answer.tiles[0].shape == wanted.shape
            assert np.abs(pixel_tensor(answer.tiles[0]) - pixel_tensor(wanted)).mean() < NEAR, name


def tile(answer: Decoded | ServingError) -> np.ndarray:
    assert isinstance(answer, Decoded), answer
    return answer.tiles[0, 0]


@pytest.mark.dali
@pytest.mark.parametrize("name", PICTURES)
def test_pixels_are_those_of_transformers(stage: DecodeStage, name: str) -> None:
    """Within the golden tolerance of the CPU path: orientations, inks, profiles, grey, and all formats besides JPEG."""
    (answer,) = answers_of(stage, [picture(name)])
    difference = pixel_tensor(sample(tile(answer))) - pixel_tensor(goldens()[f"{name}_{SIDE}"])
    assert np.abs(difference).mean() < NEAR


@pytest.mark.dali
def test_broken_pictures_are_refused_alone_and_in_the_same_words(stage: DecodeStage) -> None:
    good = (FOLDER / "jpeg_baseline.jpg").read_bytes()
    broken = good[: len(good) // 2]
    with pytest.raises(ServingError) as refusal:
        decode(broken, SIDE, LIMITS)
    answers = answers_of(stage, *[[good]] * 6, [broken], *[[good]] * 6)
    assert isinstance(answers[6], ServingError)
    assert answers[6].message == refusal.value.message
    tiles = [tile(answer) for i, answer in enumerate(answers) if i != 6]
    assert all(np.abs(one.astype(int) - tiles[0]).mean() < 1 for one in tiles)
    (after,) = answers_of(stage, [good])
    np.testing.assert_array_equal(tile(after), tile(answers_of(stage, [good])[0]))


@pytest.mark.dali
def test_the_serialised_pipeline_makes_the_same_pixels(tmp_path: Any) -> None:
    """What Triton's DALI backend would load."""
    from nvidia.dali.pipeline import Pipeline  # noqa: PLC0415

    from build_engines.decode_dali import write_dali_model  # noqa: PLC0415
    from python_backends.media.dali_pipeline import FILES, DaliPipeline, DaliSettings  # noqa: PLC0415
    from python_backends.media.tiling import Size  # noqa: PLC0415

    settings = DaliSettings(batch_size=4, threads=1, on_gpu=False)
    model = write_dali_model(settings, SIDE, tmp_path)
    pipeline = Pipeline.deserialize(filename=str(model / "1" / "model.dali"))
    pipeline.build()
    file = (FOLDER / "jpeg_exif6.jpg").read_bytes()
    pipeline.feed_input(FILES, [np.frombuffer(file, np.uint8)])
    (tiles,) = pipeline.run()
    ((direct,),) = DaliPipeline(settings).run([file], [[Size(SIDE, SIDE)]])
    np.testing.assert_array_equal(np.array(tiles.at(0)), direct)
