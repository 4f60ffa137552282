"""Tiles are those of the reference image processor, within 2/255 of the pixel tensor (mean absolute difference)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from tests.golden.make_media_goldens import FILE, PICTURES, SIZES, picture, sample

LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)
NEAR = 2 / 255


file = cache(picture)


@cache
def goldens() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


def pixel_tensor(levels: np.ndarray) -> np.ndarray:
    """As the vision tower normalises them: mean and deviation 0.5 of 0 to 1."""
    return levels.astype(np.float32) / 127.5 - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PICTURES)
def test_pixels_are_those_of_transformers(name: str, size: int) -> None:
    ours = sample(decode(file(name), size, LIMITS))
    difference = pixel_tensor(ours) - pixel_tensor(goldens()[f"{name}_{size}"])
    assert np.abs(difference).mean() < NEAR


def test_there_is_a_golden_of_every_picture() -> None:
    assert len(PICTURES) >= 100
    assert {f"{name}_{size}" for name in PICTURES for size in SIZES} == set(goldens())
