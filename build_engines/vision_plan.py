"""What a checkpoint's TensorRT plan is built for: the pool's batches in the shapes of its inputs, and its precision."""

from __future__ import annotations

from build_engines.tensorrt_plan import Profile, patch_profiles, tile_profiles
from python_backends.checkpoint import Checkpoint
from python_backends.media.layout import patch_grid
from python_backends.pools import VisionPool


def precision_of(checkpoint: Checkpoint, pool: VisionPool) -> str:
    """f32, f16 or bf16. Qwen2.5-VL's tower was trained in bf16, and its later blocks overflow in f16."""
    if pool.precision != "auto":
        return pool.precision
    return "f16" if checkpoint.native is None else "bf16"


def profiles_of(checkpoint: Checkpoint, pool: VisionPool) -> list[Profile]:
    """Optimisation profiles; see `VisionPool.profiles`.

    At native resolution a batch has no more patches than the largest picture, and a profile its share of them: with
    batch_size 8 the batch 2 stands for a quarter.
    """
    native = checkpoint.native
    if native is None:
        return tile_profiles(pool.profiles(), checkpoint.image_size)
    most, merged = patch_grid(native).most_tokens, native.merge**2
    ends = [max(1, most * high // pool.batch_size) for _, _, high in pool.profiles()]
    begins = [1, *(end + 1 for end in ends[:-1])]
    patches = [(begin * merged, end * merged, end * merged) for begin, end in zip(begins, ends, strict=True)]
    return patch_profiles(patches, native.patch, (native.window // native.patch) ** 2)
