"""The decode stage in its worker process: one bad picture fails its own request and no other."""

from __future__ import annotations

import base64
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from perf.decode_stage import Outcome, artifacts_in, decode, submit
from python_backends.errors import ServingError, Status
from python_backends.media import stage as stage_module
from python_backends.media.limits import SMALL_PIXELS
from python_backends.media.stage import Decoded, DecodeStage
from python_backends.workers import WorkerSpec
from tests.fakes.media_targets import POISON, slow
from tests.media.make_corpus import FOLDER

JPEG = (FOLDER / "jpeg_exif6.jpg").read_bytes()
PNG = (FOLDER / "png_rgba.png").read_bytes()
THREADS = 2


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecodeStage]:
    def fragile(**fields: Any) -> WorkerSpec:
        return WorkerSpec(**{**fields, "target": "tests.fakes.media_targets:FragileDecodeWorker"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_module, "WorkerSpec", fragile)
        folder = artifacts_in(tmp_path_factory.mktemp("artifacts"), {"threads": THREADS}, image_bytes_mb=1)
        decoding = DecodeStage("image_decode", folder)
    decoding.start()
    yield decoding
    decoding.close()


class Held:
    """A picture that is being decoded until it is let go."""

    def __init__(self, folder: Path, width: int = 8, height: int = 8) -> None:
        self._pipe = tempfile.mktemp(dir=folder)
        os.mkfifo(self._pipe)
        self.file = slow(self._pipe, width, height)

    def let_go(self) -> None:
        """Returns when its turn has come and is over."""
        with open(self._pipe, "w"):
            pass


def outcomes(answers: list[Outcome]) -> list[str]:
    return [answer.message if isinstance(answer, ServingError) else str(answer.tiles.shape) for answer in answers]


def test_every_request_of_a_batch_gets_its_own_answer(stage: DecodeStage) -> None:
    answers = decode(stage, [JPEG], [b"hello, world"], [base64.b64encode(PNG), JPEG], [b""], [PNG, b""])
    assert outcomes(answers) == [
        "(1, 1, 32, 32, 3)",
        "image: text of 12 bytes that begins with 'hello, world' is not supported "
        "(accepted: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC)",
        "(2, 1, 32, 32, 3)",
        "image: it is empty (0 bytes)",
        "image: it is empty (0 bytes)",
    ]
    both = answers[2]
    assert isinstance(both, Decoded)
    assert both.decode_ms.shape == (2, 1)
    assert both.decode_ms.dtype == np.float32
    assert (both.decode_ms > 0).all()


def test_more_than_there_are_threads_wait_their_turn(stage: DecodeStage) -> None:
    assert outcomes(decode(stage, *[[JPEG]] * 100)) == ["(1, 1, 32, 32, 3)"] * 100


def test_a_request_of_no_image_or_of_no_bytes_is_refused(stage: DecodeStage) -> None:
    assert outcomes(decode(stage, [], ["text"])) == [
        "image: it holds no element",
        "image: must be bytes, not str",
    ]


def test_too_much_is_refused_before_it_is_copied(stage: DecodeStage) -> None:
    (answer,) = outcomes(decode(stage, [b"x" * 3_000_000]))
    assert answer == (
        "image: 3,000,000 bytes as sent are over twice the limit of 1,000,000 bytes (limits.image_bytes_mb)"
    )


def test_pictures_that_kill_the_worker_fail_alone(stage: DecodeStage) -> None:
    answers = decode(stage, [JPEG], [POISON], [PNG], [POISON], [JPEG])
    assert [isinstance(answer, Decoded) for answer in answers] == [True, False, True, False, True]
    culprit = answers[1]
    assert isinstance(culprit, ServingError)
    assert culprit.status is Status.UNAVAILABLE
    assert culprit.message == "image_decode: the worker process ended with signal 9"
    assert outcomes(decode(stage, [JPEG])) == ["(1, 1, 32, 32, 3)"]


def test_large_pictures_hold_up_no_small_one(stage: DecodeStage, tmp_path: Path) -> None:
    """More of them than there are threads, and none done before every small one is answered."""
    large = [Held(tmp_path, 5000, 5000) for _ in range(2 * THREADS)]
    futures = [submit(stage, picture.file) for picture in large]
    assert outcomes(decode(stage, *[[JPEG]] * 20)) == ["(1, 1, 32, 32, 3)"] * 20
    assert not any(future.done() for future in futures)
    for picture, future in zip(large, futures, strict=True):
        picture.let_go()
        assert outcomes([future.result(30)]) == ["image: waited"]


def test_a_slow_picture_holds_up_none_that_came_with_it(stage: DecodeStage, tmp_path: Path) -> None:
    first, second = Held(tmp_path), Held(tmp_path)
    held = submit(stage, first.file)
    answers = decode(stage, *[[JPEG]] * 5)
    assert outcomes(answers) == ["(1, 1, 32, 32, 3)"] * 5
    in_decode = [int(answer.in_decode[0, 0]) for answer in answers if isinstance(answer, Decoded)]
    assert min(in_decode) == 1, "the slow one"
    both = submit(stage, JPEG, second.file)
    first.let_go()
    assert outcomes([held.result(30)]) == ["image: waited"]
    assert not both.done(), "its own second picture is not there yet"
    second.let_go()
    assert outcomes([both.result(30)]) == ["image: waited"]


def test_a_large_picture_is_not_overtaken_for_ever(stage: DecodeStage, tmp_path: Path) -> None:
    """One that needs all the memory there is for large ones waits for those before it, and none after it goes first."""
    before, whole, after = (Held(tmp_path, side, side) for side in (5000, 8000, 5000))
    futures = [submit(stage, picture.file) for picture in (before, whole, after)]
    for index, picture in enumerate((before, whole, after)):
        picture.let_go()
        assert outcomes([futures[index].result(30)]) == ["image: waited"]
        assert not any(future.done() for future in futures[index + 1 :])


def test_large_files_are_decoded_like_small_ones(stage: DecodeStage) -> None:
    file = io.BytesIO()
    Image.new("RGB", (2500, 2000), (10, 200, 30)).save(file, "PNG")
    assert SMALL_PIXELS < 2500 * 2000
    (answer,) = decode(stage, [file.getvalue()])
    assert isinstance(answer, Decoded)
    np.testing.assert_array_equal(answer.tiles[0, 0], np.full((32, 32, 3), (10, 200, 30)))
