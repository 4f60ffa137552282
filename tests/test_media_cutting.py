"""One tile a picture: squashed, its middle cut out, or on a padded square, as the reference processors do it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from python_backends.errors import ServingError, Status
from python_backends.media.decode import decode_file
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from python_backends.media.tiling import AnyResolution, Size
from tests.media.scenes import photo

SIDE = 56
GREY = (122, 116, 104)
LIMITS = ImageLimits(10_000_000, 10_000_000)


def tiles(picture: Image.Image, layout: Layout, *, alone: bool = True, **save: object) -> NDArray[np.uint8]:
    file = io.BytesIO()
    picture.save(file, "PNG", **save)
    data = file.getvalue()
    return decode_file(data, read_header(data, LIMITS), layout, LIMITS, alone=alone)


def difference(a: NDArray[np.uint8], b: Image.Image) -> float:
    return float(np.abs(a.astype(int) - np.asarray(b).astype(int)).mean())


@pytest.mark.parametrize("size", [(56, 56), (100, 71), (71, 100), (640, 360), (57, 600)])
def test_the_middle_is_cut_out_of_the_scaled_picture(size: tuple[int, int]) -> None:
    picture = photo(*size)
    width, height = (SIDE * side // min(size) for side in size)
    scaled = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    (tile,) = tiles(picture, Layout(SIDE, fit="crop"))
    assert difference(tile, scaled.crop((left, top, left + SIDE, top + SIDE))) < 1


@pytest.mark.parametrize("size", [(56, 56), (100, 71), (71, 100), (223, 20), (1280, 960), (960, 300)])
def test_a_square_of_the_mean_colour_is_put_behind_the_picture(size: tuple[int, int]) -> None:
    picture, longer = photo(*size), max(size)
    square = Image.new("RGB", (longer, longer), GREY)
    square.paste(picture, ((longer - size[0]) // 2, (longer - size[1]) // 2))
    (tile,) = tiles(picture, Layout(SIDE, fit="pad", pad_colour=GREY))
    assert difference(tile, square.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) < (0.01 if longer <= 4 * SIDE else 1)


def test_a_turned_picture_is_cut_as_it_stands() -> None:
    """The header says how it is stored; what is stored on its side is turned before it is cut."""
    upright = photo(200, 100)
    rule = AnyResolution(SIDE, [Size(112, 56), Size(56, 112)], 4)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    whole = tiles(upright, Layout(SIDE, 16, any_resolution=rule))
    turned = tiles(upright.transpose(Image.Transpose.ROTATE_180), Layout(SIDE, 16, any_resolution=rule), exif=exif)
    assert whole.shape == turned.shape == (3, SIDE, SIDE, 3)
    assert np.abs(whole.astype(int) - turned).mean() < 1


def test_what_is_alone_only_is_one_tile_among_others() -> None:
    rule = AnyResolution(SIDE, [Size(112, 56), Size(56, 112)], 4)
    layout = Layout(SIDE, 16, any_resolution=rule, alone_only=True)
    assert len(tiles(photo(200, 100), layout)) == 3
    assert len(tiles(photo(200, 100), layout, alone=False)) == 1


def test_what_is_too_thin_to_be_cut_from_the_middle_is_refused() -> None:
    with pytest.raises(ServingError, match="image: 2010 x 10 pixels are of aspect ratio 201, over") as error:
        tiles(Image.new("RGB", (2010, 10)), Layout(SIDE, fit="crop"))
    assert error.value.status is Status.INVALID_ARG
