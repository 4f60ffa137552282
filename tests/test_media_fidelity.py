"""Tiles are those of the reference image processor, within 2/255 of the pixel tensor (mean absolute difference)."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
from PIL import Image

from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from tests.golden.make_media_goldens import FILE, SIZES, block_means
from tests.media.scenes import SCENES, encoded_scenes

LIMITS = ImageLimits(max_bytes=20_000_000, max_pixels=64_000_000)
NEAR = 2 / 255


@cache
def files() -> dict[str, bytes]:
    return dict(encoded_scenes())


def pixel_tensor(tile: np.ndarray) -> np.ndarray:
    """As the vision tower normalises it: mean and deviation 0.5 of 0 to 1."""
    return tile.astype(np.float32) / 127.5 - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCENES)
def test_block_means_are_those_of_transformers(name: str, size: int) -> None:
    with np.load(FILE) as goldens:
        golden = goldens[f"{name}_{size}"]
    ours = block_means(pixel_tensor(decode(files()[name], size, LIMITS)))
    assert np.abs(ours - golden).mean() < NEAR


@pytest.mark.parametrize("size", [*SIZES, 384])
@pytest.mark.parametrize("name", SCENES)
def test_pixels_are_those_of_a_whole_decode(name: str, size: int) -> None:
    with Image.open(io.BytesIO(files()[name])) as image:
        whole = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
    difference = pixel_tensor(decode(files()[name], size, LIMITS)) - pixel_tensor(whole)
    assert np.abs(difference).mean() < NEAR
