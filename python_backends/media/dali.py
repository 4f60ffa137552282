"""The media decode stage with DALI, as it runs in its worker process: for pools of device gpu.

JPEG, which GPUs decode, goes through DALI in batches. All other formats, and JPEG in inks or with an oddity that DALI
refuses, take the CPU path: so every picture is accepted or refused as on CPUs, and a bad one alone.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from python_backends.media.batching import Batcher
from python_backends.media.colour import to_srgb
from python_backends.media.cutting import cut, scales
from python_backends.media.dali_pipeline import MOST_SIZES, DaliPipeline, DaliRefusal, DaliSettings
from python_backends.media.sniff import ImageHeader
from python_backends.media.tiling import Size
from python_backends.media.worker import Arrays, DecodeWorker


@dataclass(frozen=True)
class _Picture:
    file: bytes
    sizes: Sequence[Size]


class DaliWorker(DecodeWorker):
    """As DecodeWorker; config has besides: batch_size, hw_decoder_load, and on_gpu (default true; false: CPUs)."""

    bounds_memory = False  # the driver reserves more address space than any bound would leave

    def __init__(self, config: dict[str, Any]) -> None:
        settings = DaliSettings(
            batch_size=int(config["batch_size"]),
            threads=int(config["threads"]),
            on_gpu=bool(config.get("on_gpu", True)),
            hw_decoder_load=float(config["hw_decoder_load"]),
        )
        self._pipeline = DaliPipeline(settings)  # before stderr is silenced: what it says of a missing driver is wanted
        super().__init__(config)
        self._batcher: Batcher[_Picture, list[NDArray[np.uint8]]] = Batcher(self._run, settings.batch_size)

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """As DecodeWorker."""
        started = time.perf_counter()
        if op == "decode" and meta["format"] == "JPEG":
            fields = {name: value for name, value in meta.items() if name != "alone"}
            tiles = self._decode(arrays[0].tobytes(), ImageHeader(**fields), bool(meta["alone"]))
            if tiles is not None:
                return [tiles], {"error": None, "decode_ms": (time.perf_counter() - started) * 1000}
        return super().handle(op, arrays, meta)

    def _decode(self, file: bytes, header: ImageHeader, alone: bool) -> NDArray[np.uint8] | None:
        """Tiles uint8 [tiles, side, side, 3]; None: better asked of Pillow, which says what is wrong."""
        size = Size(*header.upright_size)
        try:
            with Image.open(io.BytesIO(file), formats=["JPEG"]) as image:  # reads the header only
                profile = image.info.get("icc_profile")
                suitable = image.mode == "RGB" or (image.mode == "L" and not profile)
                same = image.size == (header.width, header.height)
            sizes = list(dict.fromkeys(scales(size, self._layout, alone)))
        except Exception:  # Pillow has no base class for what it raises
            return None
        if not suitable or not same or len(sizes) > MOST_SIZES:
            return None
        try:
            pixels = self._batcher.call(_Picture(file, sizes))
        except DaliRefusal:
            return None
        scaled = [to_srgb(Image.fromarray(each), profile).convert("RGB") for each in pixels]
        return cut(dict(zip(sizes, scaled, strict=True)).__getitem__, size, self._layout, alone)

    def _run(self, pictures: list[_Picture]) -> list[list[NDArray[np.uint8]]]:
        return self._pipeline.run([p.file for p in pictures], [p.sizes for p in pictures])
