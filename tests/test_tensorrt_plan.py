"""Shapes of optimisation profiles, and what is said without TensorRT. With a real builder: tests/export."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_plan import as_json, build_plan, patch_profiles, serialize, tile_profiles


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


class _Builder:
    """A fake of what `serialize` uses of TensorRT; a cache is good when it begins with the name of its GPU."""

    gpu = b"A100"

    def __init__(self, logger: Any) -> None:
        self.cache = SimpleNamespace(serialize=lambda: b"")

    def create_network(self, flags: int) -> Any:
        return SimpleNamespace(num_inputs=0)

    def create_builder_config(self) -> Any:
        return SimpleNamespace(
            set_memory_pool_limit=lambda pool, size: None,
            create_timing_cache=lambda data: SimpleNamespace(data=data) if data != b"of another version" else None,
            set_timing_cache=self._set,
            get_timing_cache=lambda: SimpleNamespace(serialize=lambda: self.cache.data + b" timed"),
        )

    def _set(self, cache: Any, ignore_mismatch: bool) -> bool:
        if not cache.data:
            cache.data = self.gpu
        self.cache = cache
        return bool(cache.data.startswith(self.gpu))

    def build_serialized_network(self, network: Any, config: Any) -> bytes:
        return b"plan"


FAKE_TENSORRT = SimpleNamespace(
    Builder=_Builder, ILogger=object, NetworkDefinitionCreationFlag=object, MemoryPoolType=SimpleNamespace(WORKSPACE=0),
    OnnxParser=lambda network, logger: SimpleNamespace(parse_from_file=lambda path: True),
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, b"A100 timed"),
        (b"A100 timed", b"A100 timed timed"),
        (b"RTX 4090 timed", b"A100 timed"),
        (b"of another version", b"A100 timed"),
    ],
)
def test_what_was_timed_is_used_again_on_the_same_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, after: bytes
) -> None:
    cache = tmp_path / "cache"
    if before is not None:
        cache.write_bytes(before)
    assert serialize(FAKE_TENSORRT, tmp_path / "model.onnx", [], timing_cache=cache) == b"plan"
    assert cache.read_bytes() == after
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]


def test_a_plan_without_tensorrt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BuildError, match="a TensorRT plan is built where it will run: tensorrt can't be imported"):
        build_plan(tmp_path, tmp_path / "plan", "[]")
