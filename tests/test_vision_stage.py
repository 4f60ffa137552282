"""The vision encode stage with a tiny model: whose tokens are whose, and in which shapes."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from python_backends.engines.vision_openvino import find_model, precision
from python_backends.engines.vision_stage import Arrival, Encoded, EncodeStage, Pictures
from python_backends.errors import ServingError
from python_backends.scheduling.window import BatchWindow
from tests.test_media_stage import artifacts_in

SIDE, TOKENS, HIDDEN = 32, 4, 8


def tiny_model(folder: Path) -> None:
    """Each tile becomes 4 tokens of its mean brightness."""
    tiles = ops.parameter([-1, SIDE, SIDE, 3], ov.Type.u8, name="tiles")
    means = ops.reduce_mean(ops.convert(tiles, "f32"), np.array([1, 2, 3]), keep_dims=True)
    tokens = ops.tile(ops.squeeze(means, np.array([3])), np.array([1, TOKENS, HIDDEN]))
    model = ov.Model([ops.result(tokens)], [tiles], "tiny")
    model.outputs[0].get_tensor().set_names({"visual_tokens"})
    folder.mkdir()
    ov.save_model(model, folder / "model.xml")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = artifacts_in(tmp_path_factory.mktemp("artifacts"))
    tiny_model(folder / "vision")
    return folder


def started(artifacts: Path) -> Iterator[EncodeStage]:
    encoding = EncodeStage("vision_encoder", artifacts)
    encoding.start()
    yield encoding
    encoding.close()


@pytest.fixture(scope="module")
def stage(artifacts: Path) -> Iterator[EncodeStage]:
    yield from started(artifacts)


@pytest.fixture
def patient_stage(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EncodeStage]:
    """Its window is a minute long."""
    monkeypatch.setattr(BatchWindow, "saving_s", 60.0)
    yield from started(artifacts)


def tiles(*brightness: int, images: int = 1) -> Pictures:
    array = np.array(brightness, np.uint8).reshape(images, -1, 1, 1, 1)
    pixels = np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], SIDE, SIDE, 3)))
    return Pictures(pixels, np.ones((images, 2), np.int32))


def means(answer: Encoded | ServingError) -> list[list[float]]:
    assert isinstance(answer, Encoded)
    assert answer.visual_tokens.dtype == np.float16
    assert answer.encode_ms.dtype == np.float32
    assert answer.encode_ms.shape == (len(answer.visual_tokens), 1)
    return [image.reshape(-1, TOKENS, HIDDEN).mean(axis=(1, 2)).tolist() for image in answer.visual_tokens]


def test_requests_of_different_numbers_of_tiles_share_a_batch(stage: EncodeStage) -> None:
    answers = stage.encode([tiles(10), tiles(20, 30, 40), tiles(50, 60, images=2)])
    assert [means(answer) for answer in answers] == [[[10]], [[20, 30, 40]], [[50], [60]]]


def test_more_tiles_than_a_call_takes_keep_their_order(stage: EncodeStage) -> None:
    (answer,) = stage.encode([tiles(*range(150))])
    assert means(answer) == [list(range(150))]


class Inbox:
    """Keeps what a stage answers."""

    def __init__(self) -> None:
        self.answers: queue.Queue[tuple[int, Encoded | ServingError]] = queue.Queue()

    def arrival(self, number: int, coming: int) -> Arrival:
        return Arrival(tiles(number), coming, lambda answer: self.answers.put((number, answer)))

    def get(self) -> tuple[int, list[list[float]]]:
        number, answer = self.answers.get(timeout=20)
        return number, means(answer)


def test_lone_picture_is_encoded_within_its_call(stage: EncodeStage) -> None:
    inbox = Inbox()
    stage.submit([inbox.arrival(5, coming=0)])
    assert inbox.answers.qsize() == 1
    assert inbox.get() == (5, [[5]])


def test_picture_waits_for_one_that_comes_and_is_encoded_with_it(patient_stage: EncodeStage) -> None:
    inbox = Inbox()
    patient_stage.submit([inbox.arrival(5, coming=1)])
    assert inbox.answers.empty()
    patient_stage.submit([inbox.arrival(6, coming=0)])
    (_, first), (_, second) = (inbox.answers.get_nowait() for _ in range(2))
    assert (means(first), means(second)) == ([[5]], [[6]])
    assert isinstance(first, Encoded)
    assert isinstance(second, Encoded)
    assert first.encode_ms == second.encode_ms  # of one batch


def test_batch_that_is_full_waits_for_nobody(patient_stage: EncodeStage) -> None:
    inbox = Inbox()
    patient_stage.submit([inbox.arrival(number, coming=9) for number in range(8)])
    assert [inbox.get()[0] for _ in range(8)] == list(range(8))


def test_picture_that_nobody_joins_is_encoded_when_the_window_is_over(stage: EncodeStage) -> None:
    inbox = Inbox()
    stage.submit([inbox.arrival(5, coming=1)])
    assert inbox.get() == (5, [[5]])


def test_tiles_of_a_wrong_shape_fail_alone(stage: EncodeStage) -> None:
    wrong = Pictures(np.zeros((1, 1, 16, 16, 3), np.uint8), np.ones((1, 2), np.int32))
    answers = stage.encode([tiles(10), wrong, tiles(20)])
    assert means(answers[0]) == [[10]]
    assert means(answers[2]) == [[20]]
    assert isinstance(answers[1], ServingError)
    assert answers[1].message == "tiles: shape [1, 16, 16, 3] must be [tiles, 32, 32, 3]"


class _Core:
    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def get_property(self, device: str, name: str) -> tuple[str, ...]:
        return self._capabilities


@pytest.mark.parametrize(
    ("wanted", "flags", "capabilities", "used"),
    [
        ("auto", {"amx_bf16"}, ("FP32", "BF16"), "bf16"),
        ("auto", {"avx512_bf16"}, ("FP32", "BF16"), "f32"),
        ("auto", {"amx_bf16"}, ("FP32",), "f32"),
        ("f32", {"amx_bf16"}, ("BF16",), "f32"),
        ("bf16", set(), ("FP32",), "bf16"),
    ],
)
def test_auto_precision_is_bf16_only_with_amx(
    monkeypatch: pytest.MonkeyPatch, wanted: str, flags: set[str], capabilities: tuple[str, ...], used: str
) -> None:
    monkeypatch.setattr("python_backends.engines.vision_openvino._cpu_flags", lambda: flags)
    assert precision(_Core(*capabilities), wanted) == used


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds none of model\.xml, model\.onnx"):
        find_model(tmp_path)
