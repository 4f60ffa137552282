"""Decode and encode at native resolution (Qwen2.5-VL's) with a tiny tower: sizes, batches, whose tokens are whose."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as ops
from PIL import Image

from perf.decode_stage import artifacts_in, decode, started
from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint, NativeResolution, load_checkpoint
from python_backends.engines.towers import PatchTower
from python_backends.engines.vision_stage import Encoded, EncodeStage, Pictures
from python_backends.errors import ServingError
from python_backends.media.decode import decode_file
from python_backends.media.layout import Layout, patch_grid
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from python_backends.media.stage import Decoded, DecodeStage
from python_backends.media.tiling import PatchGrid, Size
from tests.media.scenes import photo

HIDDEN = 8
NATIVE = NativeResolution(patch=14, merge=2, window=112, min_pixels=28 * 28 * 2, max_pixels=28 * 28 * 64)
RULE = patch_grid(NATIVE)
LIMITS = ImageLimits(10_000_000, 10_000_000)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = artifacts_in(tmp_path_factory.mktemp("native"), {"threads": 2})
    facts = load_checkpoint(folder).model_copy(update={"native": NATIVE, "image_size": 56})
    (folder / CHECKPOINT_FILE).write_text(facts.model_dump_json())
    tiny_tower(folder / "vision")
    return folder


def tiny_tower(folder: Path) -> None:
    """Four patches become a token of their mean brightness; the indices are taken, and not used."""
    patches = ops.parameter([-1, 14, 14, 3], ov.Type.u8, name="patches")
    indices = [
        ops.parameter(shape, ov.Type.i32, name=name)
        for name, shape in (("positions", [-1, 2]), ("pictures", [-1]), ("windows", [-1, 64]), ("slots", [-1]))
    ]
    groups = ops.reshape(ops.convert(patches, "f32"), np.array([-1, 4 * 14 * 14 * 3]), special_zero=False)
    means = ops.reduce_mean(groups, np.array([1]), keep_dims=True)
    model = ov.Model([ops.result(ops.tile(means, np.array([1, HIDDEN])))], [patches, *indices], "tiny")
    model.outputs[0].get_tensor().set_names({"visual_tokens"})
    folder.mkdir()
    ov.save_model(model, folder / "model.xml")


@pytest.fixture(scope="module")
def stage(artifacts: Path) -> Iterator[EncodeStage]:
    encoding = EncodeStage("vision_encoder", artifacts)
    encoding.start()
    yield encoding
    encoding.close()


def flat(width: int, height: int, brightness: int) -> Pictures:
    """As decode hands a picture of this size over."""
    resized = RULE.resized(Size(width, height))
    pixels = np.full((1, 1, resized.height, resized.width, 3), brightness, np.uint8)
    return Pictures(pixels, np.array([[width, height]], np.int32))


def values(answer: Encoded | ServingError) -> list[float]:
    assert isinstance(answer, Encoded), answer
    assert answer.visual_tokens.shape[0] == 1 and answer.visual_tokens.shape[2] == HIDDEN
    rows: list[float] = answer.visual_tokens[0, :, 0].tolist()
    return rows


def test_pictures_of_different_sizes_share_a_batch(stage: EncodeStage) -> None:
    sizes = [(56, 84), (300, 30), (10, 10), (900, 900)]
    answers = stage.encode([flat(*size, 10 * index) for index, size in enumerate(sizes)])
    for index, (size, answer) in enumerate(zip(sizes, answers, strict=True)):
        assert values(answer) == [10 * index] * RULE.tokens(Size(*size))
    assert isinstance(answers[0], Encoded) and isinstance(answers[1], Encoded)
    assert answers[0].encode_ms == answers[1].encode_ms


def test_more_than_a_call_takes_goes_in_several(stage: EncodeStage) -> None:
    """All four together are over the 64 tokens of the largest picture."""
    answers = stage.encode([flat(224, 112 + 28 * index, index) for index in range(9)])
    assert [set(values(answer)) for answer in answers] == [{index} for index in range(9)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Pictures(np.zeros((1, 1, 56, 56, 3), np.uint8), np.array([[84, 56]], np.int32)), "must be [1, 56, 84, 3]"),
        (Pictures(np.zeros((1, 2, 56, 56, 3), np.uint8), np.array([[56, 56]], np.int32)), "must be [1, 56, 56, 3]"),
        (Pictures(np.zeros((1, 1, 28, 28, 3), np.uint8), np.array([[999, 4]], np.int32)), "aspect ratio 250"),
    ],
)
def test_a_picture_that_was_not_scaled_by_the_rule_fails_alone(
    stage: EncodeStage, wrong: Pictures, sentence: str
) -> None:
    good, bad = stage.encode([flat(56, 56, 3), wrong])
    assert values(good) == [3] * 4
    assert isinstance(bad, ServingError) and sentence in bad.message


def file_of(width: int, height: int, kind: str = "PNG", **save: object) -> bytes:
    file = io.BytesIO()
    photo(width, height).save(file, kind, **save)
    return file.getvalue()


def decoded(data: bytes) -> NDArray[np.uint8]:
    (pixels,) = decode_file(data, read_header(data, LIMITS), Layout(56, native=RULE), LIMITS, alone=True)
    return pixels


@pytest.mark.parametrize("size", [(112, 56), (100, 60), (500, 400), (40, 9)])
def test_decode_scales_a_picture_to_whole_tokens(size: tuple[int, int]) -> None:
    wanted = RULE.resized(Size(*size))
    scaled = photo(*size).resize((wanted.width, wanted.height), Image.Resampling.BICUBIC)
    given = decoded(file_of(*size))
    assert given.shape == (wanted.height, wanted.width, 3)
    assert np.abs(given.astype(int) - np.asarray(scaled).astype(int)).mean() < 1


def test_a_lying_picture_is_scaled_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    given = decoded(file_of(140, 56, "JPEG", exif=exif, quality=95))
    upright = np.asarray(photo(140, 56).transpose(Image.Transpose.ROTATE_270))
    assert given.shape == upright.shape == (140, 56, 3)
    assert np.abs(given.astype(int) - upright.astype(int)).mean() < 5


def test_what_decode_hands_over_is_what_encode_takes(artifacts: Path, stage: EncodeStage) -> None:
    decoding = DecodeStage("image_decode", artifacts)
    started(decoding)
    try:
        sizes = [(400, 300), (31, 75), (112, 112)]
        answers = decode(decoding, *[[file_of(*size)] for size in sizes])
        handed = []
        for answer in answers:
            assert isinstance(answer, Decoded), answer
            handed.append(Pictures(answer.tiles, answer.picture_size))
        counts = [len(values(answer)) for answer in stage.encode(handed)]
        assert counts == [RULE.tokens(Size(*size)) for size in sizes]
        (refusal,) = decode(decoding, [file_of(*sizes[0]), file_of(*sizes[1])])
        assert isinstance(refusal, ServingError)
        assert "pictures of 1x168x252, 1x84x28 (tiles, height, width) don't fit into one tensor" in refusal.message
    finally:
        decoding.close()


@pytest.mark.parametrize("image_tokens", [16, 18, 63, 256, 1280, 16_384])
def test_the_example_picture_is_within_the_limit(image_tokens: int) -> None:
    """Stages warm up with it."""
    native = NATIVE.model_copy(update={"min_pixels": 28 * 28 * 20, "max_pixels": 28 * 28 * 1500})
    facts = Checkpoint(
        name="native", image_size=448, tokens_per_tile=256, native=native, hidden_size=4, vocab_size=100,
        kv_bytes_per_token=64, context_tokens=64, image_token="<image>", eos_token_ids=(0,),
    ).within(image_tokens)  # fmt: skip
    layout, example = Layout.of(facts), Size(facts.image_size, facts.image_size)
    assert layout.native is not None and layout.native.resized(example) == example
    assert facts.tokens_per_tile == layout.tokens(example, alone=True) <= layout.most_tokens
    assert layout.tokens(Size(4000, 4000), alone=True) <= image_tokens


SIDES = st.integers(1, 5000)


@given(SIDES, SIDES, st.integers(1, 1 << 20), st.integers(784, 1 << 22))
def test_no_picture_has_more_tokens_than_the_most(width: int, height: int, least: int, most: int) -> None:
    rule = PatchGrid(min_pixels=min(least, most), max_pixels=most)
    if max(width, height) <= 200 * min(width, height):
        assert 1 <= rule.tokens(Size(width, height)) <= rule.most_tokens


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=12))
def test_every_call_is_within_its_slot(artifacts: Path, sizes: list[tuple[int, int]]) -> None:
    tower = PatchTower(load_checkpoint(artifacts), NATIVE)
    pictures = [flat(*size, 0).tiles[0] for size in sizes if max(size) <= 200 * min(size)]
    calls = list(tower.calls(pictures))
    assert sum(len(call) for call in calls) == len(pictures)
    for call in calls:
        rows = sum(tower.rows(picture) for picture in call)
        assert rows <= RULE.most_tokens
        assert sum(picture.nbytes for picture in call) + rows * HIDDEN * 2 < tower.slot_bytes
