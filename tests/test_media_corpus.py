"""Every kind of accepted picture comes out upright and in its right colours, as an independent decoder sees it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from tests.media.make_corpus import EXPECTED, FOLDER, HEIGHT, WIDTH

LIMITS = ImageLimits(max_bytes=1_000_000, max_pixels=1_000_000)
EXPECTATIONS = json.loads(EXPECTED.read_text())
TOLERANCE = 8  # of 255: chroma and the bicubic edge bleed between quadrants, which differ by 80 or more


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_quadrants_have_the_colours_that_imagemagick_sees(name: str) -> None:
    tile = decode((FOLDER / name).read_bytes(), 64, LIMITS).astype(float)
    halves = (slice(0, 32), slice(32, 64))
    means = [tile[rows, columns].mean(axis=(0, 1)) for rows in halves for columns in halves]
    np.testing.assert_allclose(means, EXPECTATIONS[name], atol=TOLERANCE)


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_header_size_is_what_pillow_reads(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    header = read_header(data, LIMITS)
    with Image.open(FOLDER / name) as image:
        turned = name in ("tiff_orientation6.tif", "heic_exif6.heic")
        stored = image.size[::-1] if turned else image.size
    if header.format == "HEIF":  # what is coded: whole blocks, cropped only after
        assert header.width >= stored[0]
        assert header.height >= stored[1]
    else:
        assert (header.width, header.height) == stored


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_upright_size_is_known_before_anything_is_decoded(name: str) -> None:
    """It decides how many visual tokens a tiled picture has. The quadrants above say that it's turned the right way."""
    portrait = ["exif5", "exif6", "exif7", "exif8", "orientation6"]
    expected = (HEIGHT, WIDTH) if any(turn in name for turn in portrait) else (WIDTH, HEIGHT)
    assert read_header((FOLDER / name).read_bytes(), LIMITS).upright_size == expected
