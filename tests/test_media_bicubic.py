"""The vectorised filter gives Pillow's levels, whatever the sizes and modes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from python_backends.media import bicubic as module
from python_backends.media.bicubic import bicubic

BANDS = {"L": 1, "RGB": 3, "RGBa": 4, "CMYK": 4}
sides = st.integers(1, 300)


def noise(mode: str, width: int, height: int, seed: int = 5) -> Image.Image:
    """Black, white and everything between, side by side: the filter overshoots at each edge."""
    levels = np.random.default_rng(seed).integers(-200, 456, (height, width, BANDS[mode])).clip(0, 255)
    return Image.frombytes(mode, (width, height), levels.astype(np.uint8).tobytes())


def reference(image: Image.Image, size: tuple[int, int], box: tuple[float, ...] | None = None) -> Image.Image:
    """Pillow's, across before down whatever it would choose."""
    left, top, right, bottom = box or (0, 0, *image.size)
    wide = image.resize((size[0], image.height), Image.Resampling.BICUBIC, (left, 0, right, image.height))
    return wide.resize(size, Image.Resampling.BICUBIC, (0, top, size[0], bottom))


def differences(ours: Image.Image, theirs: Image.Image) -> np.ndarray:
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    return np.abs(np.asarray(ours).astype(int) - np.asarray(theirs))


@given(st.sampled_from(sorted(BANDS)), sides, sides, sides, sides)
@settings(max_examples=200, deadline=None)
def test_levels_are_those_of_pillow(mode: str, width: int, height: int, to_width: int, to_height: int) -> None:
    image = noise(mode, width, height)
    size = (to_width, to_height)
    difference = differences(bicubic(image, size), reference(image, size))
    assert difference.max() <= 2
    assert difference.mean() < 0.1


@given(st.sampled_from(sorted(BANDS)), sides, sides, st.floats(0, 0.4), st.floats(0.6, 1))
@settings(max_examples=100, deadline=None)
def test_a_part_may_begin_and_end_within_a_pixel(mode: str, width: int, height: int, begin: float, end: float) -> None:
    image = noise(mode, width, height)
    box = (width * begin, height * begin, width * end, height * end)
    assert differences(bicubic(image, (40, 30), box), reference(image, (40, 30), box)).max() <= 2


@pytest.mark.parametrize("size", [(65_535, 1), (1, 65_535), (65_535, 40), (40, 65_535)])
def test_thin_pictures_are_the_same_too(size: tuple[int, int]) -> None:
    image = noise("RGB", *size)
    assert differences(bicubic(image, (64, 64)), reference(image, (64, 64))).max() <= 2


def test_threads_do_not_meet() -> None:
    images = [noise("RGB", 640, 480, seed) for seed in range(8)]
    wanted = [np.asarray(bicubic(image, (96, 96))) for image in images]
    with ThreadPoolExecutor(4) as pool:
        tiles = list(pool.map(lambda at: np.asarray(bicubic(images[at % 8], (96, 96))), range(64)))
    for at, tile in enumerate(tiles):
        np.testing.assert_array_equal(tile, wanted[at % 8])


@pytest.mark.parametrize("mode", ["RGB", "LAB"])
def test_what_the_library_can_not_do_pillow_does(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MODES", ())
    image = Image.merge(mode, noise("RGB", 100, 80).split())
    wanted = reference(image, (32, 32))
    np.testing.assert_array_equal(np.asarray(bicubic(image, (32, 32))), np.asarray(wanted))
