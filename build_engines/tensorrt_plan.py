"""A TensorRT plan from ONNX, through TensorRT's Python API: versions 10 and 11, and TensorRT-RTX.

Networks are strongly typed (in 11 there are no others): the plan computes in the types that the ONNX file has.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError

PLAN = "model.plan"
TIMING_CACHE = ".tensorrt-timing.cache"
log = logging.getLogger(__name__)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """An optimisation profile: smallest, tuned for and largest shape of every input."""

    shapes: Mapping[str, tuple[Shape, Shape, Shape]]


def tile_profiles(batches: Sequence[tuple[int, int, int]], side: int) -> list[Profile]:
    """Profiles for a tower that takes `tiles` [n, side, side, 3], from (smallest, tuned for, largest) batch."""
    return [Profile({"tiles": _each(batch, lambda count: (count, side, side, 3))}) for batch in batches]


def patch_profiles(patches: Sequence[tuple[int, int, int]], side: int, window_patches: int) -> list[Profile]:
    """Profiles for a tower that takes packed patches (media/patches.py), from their smallest, tuned and largest number.

    A window holds from 4 patches, of a picture of one token, to `window_patches`.
    """
    return [
        Profile(
            {
                "patches": _each(counts, lambda count: (count, side, side, 3)),
                "positions": _each(counts, lambda count: (count, 2)),
                "pictures": _each(counts, lambda count: (count,)),
                "slots": _each(counts, lambda count: (count,)),
                "windows": (
                    (max(1, counts[0] // window_patches), window_patches),
                    (-(-counts[1] // window_patches), window_patches),
                    (counts[2] // 4, window_patches),
                ),
            }
        )
        for counts in patches
    ]


def as_json(profiles: Sequence[Profile]) -> str:
    """For `build_plan`."""
    return json.dumps([profile.shapes for profile in profiles])


def from_json(profiles: str) -> list[Profile]:
    """The other way round."""
    return [Profile({name: _shapes(shapes) for name, shapes in each.items()}) for each in json.loads(profiles)]


def build_plan(source: Path, output: Path, profiles: str, memory_mb: str = "4096") -> None:
    """Write `output`/model.plan from `source`/model.onnx, for this machine's GPU; `profiles` as `as_json` has them.

    The timing cache lies beside the source and makes the next build of the same layers quick.

    Raises:
        BuildError: TensorRT is not installed, or can't parse or build the network; its own last error says why.
    """
    trt = import_tensorrt()
    cache = source / TIMING_CACHE
    plan = serialize(trt, source / "model.onnx", from_json(profiles), int(memory_mb), cache)
    output.mkdir()
    (output / PLAN).write_bytes(plan)


def import_tensorrt() -> Any:
    """The module tensorrt (BuildError: it is not installed)."""
    try:
        import tensorrt  # noqa: PLC0415
    except ImportError as error:
        raise BuildError(f"a TensorRT plan is built where it will run: tensorrt can't be imported ({error})") from error
    return tensorrt


def serialize(
    trt: Any, onnx: Path, profiles: Sequence[Profile], memory_mb: int = 4096, timing_cache: Path | None = None
) -> bytes:
    """The serialised plan (BuildError). `trt` is the module tensorrt or tensorrt_rtx; the latter needs no GPU."""
    logger = _logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        problems = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise BuildError(f"TensorRT can't parse {onnx.name}: {problems}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, memory_mb << 20)
    for profile in profiles:
        config.add_optimization_profile(_profile(builder, network, profile))
    cache = _load_timing_cache(config, timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(f"TensorRT can't build {onnx.name}: {logger.last or 'it does not say why'}")
    if cache is not None and timing_cache is not None:
        unfinished = timing_cache.with_name(f"{timing_cache.name}.part")
        unfinished.write_bytes(bytes(config.get_timing_cache().serialize()))
        unfinished.replace(timing_cache)
    return bytes(plan)


def _strongly_typed(trt: Any) -> int:
    """The flag for it; 11 has none, for it knows nothing else."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _profile(builder: Any, network: Any, profile: Profile) -> Any:
    made = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        name = network.get_input(index).name
        if name not in profile.shapes:
            raise BuildError(f"the network has the input {name}, for which the profile has no shape")
        made.set_shape(name, *profile.shapes[name])
    return made


def _load_timing_cache(config: Any, path: Path | None) -> Any:
    """None without a path: TensorRT-RTX asks for a GPU as soon as it is given one.

    One of another version of TensorRT or kind of GPU is not taken; then a new one takes its place.
    """
    if path is None:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _shapes(lists: list[list[int]]) -> tuple[Shape, Shape, Shape]:
    low, tuned, high = (tuple(shape) for shape in lists)
    return low, tuned, high


def _each(counts: tuple[int, int, int], shape: Callable[[int], Shape]) -> tuple[Shape, Shape, Shape]:
    low, tuned, high = (shape(count) for count in counts)
    return low, tuned, high


def _logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Hands warnings on, and remembers the last error."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            """Called by TensorRT, from any thread."""
            if severity <= trt.ILogger.ERROR:
                self.last = message
                log.error("TensorRT: %s", message)
            elif severity == trt.ILogger.WARNING:
                log.warning("TensorRT: %s", message)

    return Logger()
