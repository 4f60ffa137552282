"""A real TensorRT parser and builder takes every family's ONNX: TensorRT-RTX, which builds without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorrt_rtx

from build_engines.errors import BuildError
from build_engines.huggingface import facts
from build_engines.huggingface.towers import build_tower
from build_engines.huggingface.vision import build_vision
from build_engines.tensorrt_plan import serialize, tile_profiles
from build_engines.vision_plan import profiles_of
from python_backends.pools import VisionPool
from tests.export.random_checkpoints import FAMILIES, SIDE, make, make_qwen

BATCHES = [(1, 4, 4), (5, 16, 32)]


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_towers_of_tiles_build_with_our_profiles(family: str, precision: str, tmp_path: Path) -> None:
    build_vision(make(family, tmp_path / family), tmp_path / "vision", precision)
    plan = serialize(tensorrt_rtx, tmp_path / "vision" / "model.onnx", tile_profiles(BATCHES, SIDE))
    assert len(plan) > 10_000


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_qwen_s_tower_of_patches_builds_with_our_profiles(precision: str, tmp_path: Path) -> None:
    checkpoint = make_qwen(tmp_path / "qwen")
    build_tower(checkpoint, tmp_path / "vision", precision)
    pool = VisionPool(device="gpu", batch_size=8, profile_batches=(1, 8))
    profiles = profiles_of(facts.read(checkpoint), pool)
    assert [profile.shapes["patches"][2][0] for profile in profiles] == [148, 1200]
    plan = serialize(tensorrt_rtx, tmp_path / "vision" / "model.onnx", profiles)
    assert len(plan) > 10_000


def test_what_it_can_not_parse_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(BuildError, match=r"TensorRT can't parse model\.onnx: .+"):
        serialize(tensorrt_rtx, tmp_path / "model.onnx", tile_profiles(BATCHES, SIDE))
