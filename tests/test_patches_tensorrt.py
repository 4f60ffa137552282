"""The TensorRT runtime of packed patches against a fake TensorRT: which profile runs, whose tokens are whose."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from build_engines.tensorrt_plan import as_json
from build_engines.vision_plan import precision_of, profiles_of
from python_backends.checkpoint import Checkpoint, NativeResolution
from python_backends.engines.patches_tensorrt import PatchWorker, choose_profile
from python_backends.engines.vision_tensorrt import MODEL_FILE
from python_backends.pools import VisionPool
from python_backends.workers.targets import MissingRuntime
from tests.fakes import cuda
from tests.fakes import tensorrt as fake
from tests.fakes.gpu_router import RouterProcess

NATIVE = NativeResolution(patch=14, merge=2, window=112, min_pixels=28 * 28, max_pixels=28 * 28 * 256)
CHECKPOINT = Checkpoint(
    name="native", image_size=56, tokens_per_tile=4, native=NATIVE, hidden_size=4, vocab_size=100,
    kv_bytes_per_token=64, context_tokens=64, image_token="<image>", eos_token_ids=(0,),
)  # fmt: skip
POOL = VisionPool(device="gpu", batch_size=8, profile_batches=(2, 8))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PatchWorker:
    fake.install(monkeypatch)
    (tmp_path / MODEL_FILE).write_text(f'{{"profiles": {as_json(profiles_of(CHECKPOINT, POOL))}}}')
    made = PatchWorker({"folder": str(tmp_path), "native": NATIVE.model_dump(), "image_size": 56})
    fake.RUNS.clear()
    return made


def pictures(height: int, width: int, *brightness: int) -> NDArray[np.uint8]:
    values = np.array(brightness, np.uint8).reshape(-1, 1, 1, 1)
    return np.ascontiguousarray(np.broadcast_to(values, (len(brightness), height, width, 3)))


def test_profiles_share_out_the_patches_of_the_largest_picture() -> None:
    small, large = profiles_of(CHECKPOINT, POOL)
    assert [shape[0] for shape in small.shapes["patches"]] == [4, 256, 256]
    assert [shape[0] for shape in large.shapes["patches"]] == [260, 1024, 1024]
    assert small.shapes["windows"][2] == (64, 64)


@pytest.mark.parametrize(
    ("native", "wanted", "built"), [(NATIVE, "auto", "bf16"), (NATIVE, "f16", "f16"), (None, "auto", "f16")]
)
def test_precision_is_that_of_the_pool_or_what_the_family_bears(
    native: NativeResolution | None, wanted: Literal["auto", "f16"], built: str
) -> None:
    checkpoint = CHECKPOINT.model_copy(update={"native": native})
    assert precision_of(checkpoint, VisionPool(device="gpu", precision=wanted)) == built


def test_pictures_of_several_sizes_are_one_batch(worker: PatchWorker) -> None:
    outputs, meta = worker.handle("encode", [pictures(28, 56, 10), pictures(140, 28, 20, 30), pictures(28, 28, 40)], {})
    assert meta["encode_ms"] > 0
    assert [output.shape for output in outputs] == [(2, 4), (10, 4), (1, 4)]
    assert all(output.dtype == np.float16 for output in outputs)
    assert [output[:, 0].tolist() for output in outputs] == [[10] * 2, [20] * 5 + [30] * 5, [40]]
    assert fake.RUNS == [(0, 52)]


def test_a_small_batch_after_a_large_one_shows_nothing_of_it(worker: PatchWorker) -> None:
    worker.handle("encode", [pictures(448, 448, 200)], {})
    (small,), _ = worker.handle("encode", [pictures(28, 84, 7)], {})
    assert small[:, 3].tolist() == [7] * 3
    assert fake.RUNS == [(1, 1024), (0, 12)]


def test_tokens_of_an_earlier_batch_stay_what_they_were(worker: PatchWorker) -> None:
    """The device buffer is used again."""
    (first,), _ = worker.handle("encode", [pictures(28, 28, 5)], {})
    worker.handle("encode", [pictures(28, 28, 6)], {})
    assert first[0, 0] == 5


def test_tokens_go_into_pages(worker: PatchWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.install(monkeypatch)
    router = RouterProcess(pages=4, hidden=fake.HIDDEN)
    targets = [router.allocate("wide", 2), router.allocate("small", 1)]
    places = np.concatenate([target.rows() for target in targets])
    none = np.zeros((0, fake.HIDDEN), np.float16)
    images = [pictures(28, 56, 10), pictures(28, 28, 40)]
    outputs, _ = worker.handle(
        "encode_into", [np.arange(3, dtype=np.int32), places, none, *images], {"pool": targets[0].pool}
    )
    assert outputs == []
    read = [router.read(name)[:, 0].tolist() for name in ("wide", "small")]
    router.worker.close()
    assert read == [[10, 10], [40]]


def test_what_no_profile_holds_is_said() -> None:
    profiles = [{"patches": ((4, 14), (8, 14)), "windows": ((1, 64), (2, 64))}]
    assert choose_profile({"patches": (8, 14), "windows": (2, 64)}, profiles) == 0
    with pytest.raises(ValueError, match="no profile of the plan holds 12 patches in 1 windows"):
        choose_profile({"patches": (12, 14), "windows": (1, 64)}, profiles)


def test_a_plan_of_tiles_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)
    (tmp_path / MODEL_FILE).write_text('{"profiles": [[1, 4, 4]]}')
    with pytest.raises(MissingRuntime, match="has the tensors tiles, visual_tokens, not patches, pictures, positions,"):
        PatchWorker({"folder": str(tmp_path), "native": NATIVE.model_dump(), "image_size": 56})
