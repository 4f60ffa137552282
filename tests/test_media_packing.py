"""Features of tiles become the visual tokens that transformers makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.media.layout import Layout
from python_backends.media.packing import pack
from python_backends.media.tiling import AnyResolution, Size
from tests.golden.make_packing_goldens import (
    GOLDENS,
    HIDDEN,
    MAX_TILES,
    NEXT_CANVASES,
    ONE_CANVASES,
    ROW_END,
    SIDE,
    SIZES,
    TILE,
    features,
)

LAYOUTS = {
    "llava_next": Layout(
        TILE, SIDE**2, any_resolution=AnyResolution(TILE, [Size(*canvas) for canvas in NEXT_CANVASES], SIDE)
    ),
    "llava_onevision": Layout(
        TILE,
        SIDE**2,
        any_resolution=AnyResolution(TILE, [Size(*canvas) for canvas in ONE_CANVASES], SIDE, MAX_TILES),
        alone_only=True,
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", LAYOUTS)
def test_visual_tokens_are_those_of_transformers(family: str, size: tuple[int, int]) -> None:
    layout, picture = LAYOUTS[family], Size(*size)
    with np.load(GOLDENS) as goldens:
        golden = goldens[f"{family}_{size[0]}x{size[1]}"]
    tokens = pack(features(layout.tiles(picture)).astype(np.float16), picture, layout, ROW_END.astype(np.float16))
    assert tokens.dtype == np.float16
    assert tokens.shape == golden.shape == (layout.tokens(picture, alone=True), HIDDEN)
    np.testing.assert_allclose(tokens, golden, rtol=2e-3, atol=2e-3)  # float16


def test_one_tile_of_a_family_with_row_ends_has_one() -> None:
    layout = LAYOUTS["llava_onevision"]
    tokens = pack(features(1).astype(np.float16), Size(500, 20), layout, ROW_END.astype(np.float16))
    assert len(tokens) == layout.tokens(Size(500, 20), alone=False) == SIDE**2 + 1
    assert tokens[-1].tolist() == ROW_END.tolist()


def test_without_row_ends_features_are_the_tokens() -> None:
    tokens = pack(features(1).astype(np.float16), Size(9, 9), Layout(TILE, SIDE**2), None)
    assert tokens.tolist() == features(1)[0].tolist()
