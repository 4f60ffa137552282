"""Tiles, patch grids and token counts are those of the reference processors, for every kind of size."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from python_backends.errors import ServingError, Status
from python_backends.media.cutting import cut
from python_backends.media.layout import Layout
from python_backends.media.pixels import to_rgb
from python_backends.media.tiling import AnyResolution, PatchGrid, Size
from tests.golden.make_tiling_goldens import PICTURES, PIXELS, STEP, VALUES
from tests.media.scenes import photo

GOLDENS = json.loads(VALUES.read_text())
LLAVA = {
    "llava_next": AnyResolution(
        tile=336,
        canvases=[Size(w, h) for h, w in ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))],
        tile_features=24,
    ),
    "llava_onevision": AnyResolution(
        tile=384,
        canvases=[Size(384 * w, 384 * h) for h in range(1, 7) for w in range(1, 7)],
        tile_features=27,
        max_tiles=9,
    ),
}
SIZES = st.builds(Size, st.integers(1, 65_535), st.integers(1, 65_535))


def cut_up(picture: Image.Image, family: str) -> NDArray[np.uint8]:
    rule = LLAVA[family]
    layout = Layout(rule.tile, rule.tile_features**2, any_resolution=rule)
    return cut(lambda size: to_rgb(picture, (size.width, size.height)), Size(*picture.size), layout, alone=True)


def size_of(name: str) -> Size:
    return Size(*map(int, name.split("x")))


@pytest.mark.parametrize("family", LLAVA)
def test_tiles_and_tokens_are_those_of_transformers(family: str) -> None:
    rule = LLAVA[family]
    for name, golden in GOLDENS[family].items():
        size = size_of(name)
        if golden is not None:
            assert [rule.tiles(size), rule.tokens(size)] == golden, name
        else:  # the reference fails there
            assert rule.tokens(size) > 0


def test_patch_grids_are_those_of_transformers() -> None:
    rule = PatchGrid()
    for name, golden in GOLDENS["qwen2_vl"].items():
        size = size_of(name)
        if golden is not None:
            grid = rule.grid(size)
            assert [grid.height, grid.width, rule.tokens(size)] == golden, name
            continue
        with pytest.raises(
            ServingError, match=r"image: .* pixels are of aspect ratio .*, over the limit of 200"
        ) as error:
            rule.grid(size)
        assert error.value.status is Status.INVALID_ARG


@pytest.mark.parametrize("size", PICTURES)
@pytest.mark.parametrize("family", LLAVA)
def test_pixels_of_tiles_are_those_of_transformers(family: str, size: tuple[int, int]) -> None:
    with np.load(PIXELS) as goldens:
        golden = goldens[f"{family}_{size[0]}x{size[1]}"].astype(int)
    tiles = cut_up(photo(*size), family)
    assert tiles.shape[0] == LLAVA[family].tiles(Size(*size)) == len(golden)
    assert np.abs(tiles[:, ::STEP, ::STEP] - golden).mean() < 1  # of 255 levels: 2/255 of a tensor from -1 to 1


@pytest.mark.parametrize("family", LLAVA)
@given(size=SIZES)
def test_any_size_has_tiles_and_bounded_tokens(family: str, size: Size) -> None:
    rule = LLAVA[family]
    most = max(canvas.area for canvas in rule.canvases) // rule.tile**2
    assert 2 <= rule.tiles(size) <= 1 + most
    content, canvas = rule.content(size), rule.canvas(size)
    assert 1 <= content.width <= canvas.width
    assert 1 <= content.height <= canvas.height
    cells = rule.tile_features**2
    assert cells <= rule.tokens(size) <= cells * (1 + most) + rule.tile_features * 6


@given(size=SIZES)
def test_any_shape_that_is_not_too_thin_has_patches_within_the_bounds(size: Size) -> None:
    rule = PatchGrid()
    if max(size.width, size.height) > 200 * min(size.width, size.height):
        return
    resized = rule.resized(size)
    assert resized.width % 28 == resized.height % 28 == 0
    assert rule.min_pixels <= resized.area <= rule.max_pixels * 1.3  # a side of one patch is not made smaller
    assert rule.tokens(size) == resized.area // 28**2


def test_a_line_of_pixels_is_cut_like_anything_else() -> None:
    tiles = cut_up(Image.new("RGB", (4000, 1), (10, 200, 30)), "llava_next")
    assert tiles.shape == (1 + LLAVA["llava_next"].grid(Size(4000, 1)).area, 336, 336, 3)
    assert tiles[0, 0, 0].tolist() == [10, 200, 30]
