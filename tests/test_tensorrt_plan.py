"""Shapes of optimisation profiles, and what is said without TensorRT. With a real builder: tests/export."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_plan import as_json, build_plan, patch_profiles, tile_profiles


def test_profiles_of_tiles_follow_the_batches() -> None:
    small, large = tile_profiles([(1, 4, 4), (5, 16, 32)], side=336)
    assert small.shapes == {"tiles": ((1, 336, 336, 3), (4, 336, 336, 3), (4, 336, 336, 3))}
    assert [shape[0] for shape in large.shapes["tiles"]] == [5, 16, 32]
    assert json.loads(as_json([small]))[0]["tiles"][0] == [1, 336, 336, 3]


def test_profiles_of_patches_hold_the_fewest_and_the_most_windows() -> None:
    """64 patches may be one window, or, of pictures of one token each, 16."""
    (profile,) = patch_profiles([(64, 256, 1024)], side=14, window_patches=64)
    assert profile.shapes["patches"] == ((64, 14, 14, 3), (256, 14, 14, 3), (1024, 14, 14, 3))
    assert profile.shapes["windows"] == ((1, 64), (4, 64), (256, 64))
    assert profile.shapes["positions"][2] == (1024, 2)
    assert profile.shapes["slots"] == profile.shapes["pictures"] == ((64,), (256,), (1024,))


def test_a_plan_without_tensorrt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BuildError, match="a TensorRT plan is built where it will run: tensorrt can't be imported"):
        build_plan(tmp_path, tmp_path / "plan", "[]")
