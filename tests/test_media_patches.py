"""Packed patches: which is where, in whose window. Against transformers itself: tests/export/test_vision_onnx.py."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from python_backends.media.patches import cut_patches, pack
from python_backends.media.tiling import PatchGrid, Size

RULE = PatchGrid()
SPAN = 8  # patches of a window's side
GRIDS = st.lists(st.builds(Size, st.integers(1, 14).map(lambda n: 2 * n), st.integers(1, 14).map(lambda n: 2 * n)))


@given(grids=GRIDS.filter(bool))
def test_every_patch_has_one_slot_in_the_window_of_its_place(grids: list[Size]) -> None:
    packed = pack(grids, RULE)
    count = sum(grid.area for grid in grids)
    assert packed.windows.reshape(-1)[packed.slots].tolist() == list(range(count))
    assert (packed.windows >= 0).sum() == count
    for window in packed.windows:
        members = window[window >= 0]
        assert len(members)
        assert (window[: len(members)] == members).all(), "padding comes last"
        assert len(set(packed.pictures[members])) == 1
        assert len({tuple(place) for place in (packed.positions[members] // SPAN).tolist()}) == 1
    assert len(packed.windows) == sum(-(-grid.width // SPAN) * -(-grid.height // SPAN) for grid in grids)


@given(grid=st.builds(Size, st.integers(1, 4).map(lambda n: 2 * n), st.integers(1, 4).map(lambda n: 2 * n)))
def test_patches_are_those_at_their_positions_and_four_of_a_token_are_together(grid: Size) -> None:
    side = RULE.patch
    pixels = np.random.default_rng(0).integers(0, 256, (grid.height * side, grid.width * side, 3), np.uint8)
    patches, packed = cut_patches(pixels, RULE), pack([grid], RULE)
    for patch, (row, column) in zip(patches, packed.positions.tolist(), strict=True):
        assert (patch == pixels[row * side : (row + 1) * side, column * side : (column + 1) * side]).all()
    tokens = (packed.positions // RULE.merge).reshape(-1, RULE.merge**2, 2)
    assert (tokens == tokens[:, :1]).all()
    raster = tokens[:, 0, 0] * (grid.width // RULE.merge) + tokens[:, 0, 1]
    assert raster.tolist() == list(range(len(raster)))
