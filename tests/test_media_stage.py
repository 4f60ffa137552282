"""The decode stage in its worker process: one bad picture fails its own request and no other."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, parse_deployment
from python_backends.errors import ServingError, Status
from python_backends.media import stage as stage_module
from python_backends.media.stage import Decoded, DecodeStage
from python_backends.workers import WorkerSpec
from tests.fakes.media_targets import POISON
from tests.media.make_corpus import FOLDER
from tests.media.scenes import photo

JPEG = (FOLDER / "jpeg_exif6.jpg").read_bytes()
PNG = (FOLDER / "png_rgba.png").read_bytes()


def artifacts_in(folder: Path, **limits: Any) -> Path:
    checkpoint = Checkpoint(
        name="tiny", image_size=32, tokens_per_tile=4, hidden_size=8, vocab_size=100, kv_bytes_per_token=64,
        context_tokens=64, image_token="<image>", eos_token_ids=(0,),
    )  # fmt: skip
    deployment: Deployment = parse_deployment({"checkpoint": "tiny", "limits": limits}, "test")
    (folder / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (folder / BUILT_FILE).write_text(deployment.model_dump_json())
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecodeStage]:
    def fragile(**fields: Any) -> WorkerSpec:
        return WorkerSpec(**{**fields, "target": "tests.fakes.media_targets:FragileDecodeWorker"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_module, "WorkerSpec", fragile)
        decoding = DecodeStage("image_decode", artifacts_in(tmp_path_factory.mktemp("artifacts"), image_bytes_mb=1))
    decoding.start()
    yield decoding
    decoding.close()


def request(*images: object) -> NDArray[np.object_]:
    array = np.empty((len(images), 1), np.object_)
    array[:, 0] = images
    return array


def outcomes(answers: list[Decoded | ServingError]) -> list[str]:
    return [answer.message if isinstance(answer, ServingError) else str(answer.tiles.shape) for answer in answers]


def test_every_request_of_a_batch_gets_its_own_answer(stage: DecodeStage) -> None:
    answers = stage.decode(
        [request(JPEG), request(b"hello, world"), request(base64.b64encode(PNG), JPEG), request(b""), request(PNG, b"")]
    )
    assert outcomes(answers) == [
        "(1, 1, 32, 32, 3)",
        "image: a file of 12 bytes that begins with 68 65 6c 6c 6f 2c 20 77 is not supported "
        "(accepted: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF)",
        "(2, 1, 32, 32, 3)",
        "image: it is empty (0 bytes)",
        "image: it is empty (0 bytes)",
    ]
    both = answers[2]
    assert isinstance(both, Decoded)
    assert both.decode_ms.shape == (2, 1)
    assert both.decode_ms.dtype == np.float32
    assert (both.decode_ms > 0).all()


def test_more_than_a_call_holds_goes_in_several(stage: DecodeStage) -> None:
    answers = stage.decode([request(JPEG)] * 30)
    assert outcomes(answers) == ["(1, 1, 32, 32, 3)"] * 30


def test_too_much_is_refused_before_it_is_copied(stage: DecodeStage) -> None:
    (answer,) = outcomes(stage.decode([request(b"x" * 3_000_000)]))
    assert answer == (
        "image: 3,000,000 bytes as sent are over twice the limit of 1,000,000 bytes (limits.image_bytes_mb)"
    )


def test_a_picture_that_kills_the_worker_fails_alone(stage: DecodeStage) -> None:
    answers = stage.decode([request(JPEG), request(POISON), request(PNG)])
    assert isinstance(answers[0], Decoded)
    assert isinstance(answers[2], Decoded)
    culprit = answers[1]
    assert isinstance(culprit, ServingError)
    assert culprit.status is Status.UNAVAILABLE
    assert culprit.message == "image_decode: the worker process ended with signal 9"
    assert outcomes(stage.decode([request(JPEG)])) == ["(1, 1, 32, 32, 3)"]


def test_a_slow_picture_is_decoded_beside_the_others(stage: DecodeStage) -> None:
    large = io.BytesIO()
    photo(3000, 2000).save(large, "WEBP", quality=30, method=0)
    answers = stage.decode([request(large.getvalue()), *[request(JPEG)] * 6])
    assert all(isinstance(answer, Decoded) for answer in answers)
    slow, *quick = (float(answer.decode_ms.item()) for answer in answers if isinstance(answer, Decoded))
    assert max(quick) < slow, "they did not wait for it within the worker"
