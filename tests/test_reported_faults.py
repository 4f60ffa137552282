"""Faults that users of other multimodal servers reported, each with the smallest input that shows it.

Wrong answers come from pictures that were read wrongly, or from one picture's tokens given to another's request. More
of each kind: tests/test_media_*.py, tests/test_router_*.py, tests/test_gateway_*.py.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from python_backends.embeddings.pool import EmbeddingPool
from python_backends.errors import ServingError, Status
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.media.payload import unwrap
from python_backends.media.sniff import read_header
from python_backends.media.tiling import PatchGrid, Size
from python_backends.router.service import Router
from tests.fakes.stages import TOKENS, FakeStages, gif
from tests.media.make_corpus import FOLDER, exif
from tests.routers import Recorder, artifacts, run, tensors

__all__ = ["artifacts"]  # the fixture

LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)
WHITE = [255, 255, 255]


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def colours(file: bytes, size: int = 8) -> list[list[int]]:
    """Every colour of the tile."""
    return np.unique(decode(file, size, LIMITS).reshape(-1, 3), axis=0).tolist()


def refusal(payload: bytes) -> str:
    """The sentence that a payload is refused with."""
    with pytest.raises(ServingError) as error:
        decode(unwrap(payload, LIMITS), 8, LIMITS)
    assert error.value.status is Status.INVALID_ARG
    return error.value.message


def test_a_phone_photo_is_upright() -> None:
    photo = Image.new("RGB", (24, 16), (0, 0, 255))
    photo.paste((255, 0, 0), (0, 0, 24, 8))  # red above blue; turned clockwise, red is on the right
    data = saved(photo, "JPEG", exif=exif(6), quality=95, subsampling=0)
    assert read_header(data, LIMITS).upright_size == (16, 24)
    tile = decode(data, 8, LIMITS).astype(int)
    np.testing.assert_allclose(tile[4, 0], (0, 0, 255), atol=12)
    np.testing.assert_allclose(tile[4, 7], (255, 0, 0), atol=12)


def test_a_grey_jpeg_has_three_channels() -> None:
    assert decode(saved(Image.new("L", (224, 224), 90), "JPEG"), 8, LIMITS).tolist() == [[[90] * 3] * 8] * 8


@pytest.mark.parametrize(
    "image", [Image.new("RGBA", (9, 9), (255, 0, 255, 0)), Image.new("LA", (9, 9), (0, 0))], ids=["RGBA", "LA"]
)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_the_hidden_colour_of_a_transparent_picture_does_not_show(image: Image.Image, kind: str) -> None:
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert colours(saved(image, kind, **options)) == [WHITE]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_is_white(kind: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 255, 255, 0, 0])
    image.paste(0, (0, 0, 8, 4))
    assert colours(saved(image, kind, transparency=1)) == [[0, 0, 255], WHITE]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TIFF, big-endian"])
def test_a_16_bit_scan_keeps_its_levels(kind: str) -> None:
    ramp = np.tile(np.arange(0, 65536, 256, dtype=np.uint16), (256, 1))
    if kind == "TIFF, big-endian":
        data = saved(Image.frombytes("I;16B", (256, 256), ramp.astype(">u2").tobytes()), "TIFF")
        assert data[:2] == b"MM"
    else:
        data = saved(Image.fromarray(ramp), kind)
    assert len(colours(data, 256)) >= 255


@pytest.mark.parametrize("size", [*itertools.product((1, 2, 3, 4), repeat=2)], ids=str)
def test_no_size_is_taken_for_channels(size: tuple[int, int]) -> None:
    assert colours(saved(Image.new("RGB", size, (10, 200, 30)))) == [[10, 200, 30]]


def test_an_animation_shows_its_first_frame() -> None:
    red, green, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue"))
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        data = saved(red, kind, save_all=True, append_images=[green, blue], **options)
        assert colours(data) == [[255, 0, 0]], kind


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_red_ink_is_red(kind: str) -> None:
    tile = decode(saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), kind), 8, LIMITS)
    np.testing.assert_allclose(tile[4, 4], (255, 0, 0), atol=3)


def test_patches_are_counted_as_they_are_cut() -> None:
    """Sizes around those where rules of rounding differ."""
    rule = PatchGrid()
    sides = [*range(1, 41), *(28 * n + d for n in range(2, 9) for d in (-1, 0, 1)), 199, 200, 201]
    for width, height in itertools.product(sides, repeat=2):
        size = Size(width, height)
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(ServingError, match="over the limit of 200"):
                rule.tokens(size)
        else:
            resized, grid = rule.resized(size), rule.grid(size)
            assert (resized.width, resized.height) == (14 * grid.width, 14 * grid.height)
            assert rule.tokens(size) * 4 == grid.area
            assert grid.width % 2 == grid.height % 2 == 0


@pytest.mark.parametrize("side", [13_000, 16_000])
def test_a_small_file_of_a_huge_picture_is_refused_before_it_is_decoded(side: int) -> None:
    data = saved(Image.new("1", (side, side)))
    assert len(data) < 40_000
    assert f"{side} x {side} = {side**2:,} pixels are over the limit of 64,000,000 pixels" in refusal(data)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG is not supported (accepted: JPEG, PNG"),
        (b"data:image/svg+xml;base64," + base64.b64encode(b"<svg/>"), "SVG is not supported (accepted: JPEG, PNG"),
        (b"", "it is empty (0 bytes)"),
        (b"data:image/png,", "it is empty (0 bytes)"),
        (b"data:image/png;base64,****", "is not valid base64: '*' is not a base64 digit"),
        (b"data:image/png;base64", "the data: URI has no comma"),
        (b"data:video/jpeg;base64," + b",".join([base64.b64encode(b"\xff\xd8\xff")] * 10_000), "',' is not a base64"),
        (saved(Image.effect_noise((200, 200), 90), "JPEG")[:-128], "can't be decoded: image file is truncated"),
    ],
    ids=["SVG", "SVG in base64", "nothing", "nothing in a URI", "stars", "no comma", "10,000 frames", "truncated"],
)
def test_what_is_no_picture_is_the_client_s_mistake_and_says_why(payload: bytes, sentence: str) -> None:
    assert sentence in refusal(payload)


def test_parameters_of_a_data_uri_are_no_obstacle() -> None:
    png = (FOLDER / "png_rgb.png").read_bytes()
    assert unwrap(b"data:image/png;charset=utf-8;base64," + base64.b64encode(png), LIMITS) == png


def test_keys_of_pictures_are_whole_digests() -> None:
    pool = EmbeddingPool(0, 8, b"model")
    try:
        begins: dict[bytes, bytes] = {}
        for number in itertools.count():
            key = pool.key(str(number).encode())
            other = begins.setdefault(key[:2], key)
            if other != key:  # alike in 16 bits, as two in 300 are
                break
        assert len(key) == hashlib.blake2b(digest_size=32).digest_size
    finally:
        pool.close()


def test_the_same_text_about_another_picture_is_another_question(artifacts: Path) -> None:
    stages = FakeStages()

    async def scenario(router: Router) -> None:
        for number in (1, 2, 1):
            await router.serve(tensors("What is it?", gif(number)), "{}", Recorder())

    run(artifacts, stages, scenario)
    assert stages.visual_values == [[float(number)] * TOKENS for number in (1, 2, 1)]


def test_the_same_request_twice_is_the_same_prompt(artifacts: Path) -> None:
    stages = FakeStages()

    async def scenario(router: Router) -> None:
        for _ in range(2):
            await router.serve(tensors("<image> or <image>?", gif(1), gif(2)), "{}", Recorder())

    run(artifacts, stages, scenario)
    first, second = stages.submissions
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert stages.visual_values == [[1.0] * TOKENS + [2.0] * TOKENS] * 2


def test_pictures_keep_their_order_when_the_first_is_done_last(artifacts: Path) -> None:
    stages, done = FakeStages(), threading.Semaphore(0)

    def wait(number: int) -> None:
        if number == 1:
            for _ in range(4):
                assert done.acquire(timeout=10)
        else:
            done.release()

    stages.on_embed = wait
    client = Recorder()
    images = [gif(number) for number in (1, 2, 3, 4, 5)]
    run(artifacts, stages, lambda router: router.serve(tensors("which?", *images), "{}", client))
    assert client.error is None
    assert stages.embedded[-1] == 1
    assert stages.visual_values == [[float(number) for number in (1, 2, 3, 4, 5) for _ in range(TOKENS)]]
