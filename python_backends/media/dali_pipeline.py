"""Encoded files to pictures of given sizes with NVIDIA DALI: a whole batch at a time, on a GPU or on CPUs.

On a GPU nvJPEG decodes, in part on the hardware engine, and the resize runs where the pixels are. The filter is the
CPU path's (bicubic, antialiased). Mean difference to Pillow, of 255 levels, DALI 2.4 on CPUs: 0.01 to 0.25
(tests/test_media_dali.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.media.tiling import Size
from python_backends.workers.targets import MissingRuntime, require

REMEDY = (
    "pip install nvidia-dali-cuda130 (CUDA 13) or nvidia-dali-cuda120, or run in the image of containers/Dockerfile"
)
FILES, SIZES = "image", "sizes"  # inputs; the first is named as the stage's
MOST_SIZES = 2  # of one picture: an overview and the canvas of its tiles
_NO_SIZE = Size(1, 1)  # stands where a picture is wanted in one size only


class DaliRefusal(RuntimeError):
    """A file of the batch can't be decoded. DALI does not say which."""


@dataclass(frozen=True)
class DaliSettings:
    """How the pipeline is built."""

    batch_size: int
    threads: int
    on_gpu: bool
    hw_decoder_load: float = 0.65  # share of JPEGs for the hardware engine


class DaliPipeline:
    """One for a process; one thread at a time."""

    def __init__(self, settings: DaliSettings) -> None:
        """Build it (MissingRuntime: DALI is not installed, or finds no GPU)."""
        self._settings = settings
        self._pipeline = self._built()

    def run(self, files: Sequence[bytes], sizes: Sequence[Sequence[Size]]) -> list[list[NDArray[np.uint8]]]:
        """Each file upright (EXIF) and in RGB, squashed to each of its sizes: uint8 [height, width, 3].

        Raises:
            DaliRefusal: at least one file can't be decoded; nothing is given for the others.
        """
        padded = [[*wanted, *[_NO_SIZE] * (MOST_SIZES - len(wanted))] for wanted in sizes]
        self._pipeline.feed_input(FILES, [np.frombuffer(file, np.uint8) for file in files])
        for output in range(MOST_SIZES):
            wanted = [np.array([each[output].height, each[output].width], np.float32) for each in padded]
            self._pipeline.feed_input(f"{SIZES}_{output}", wanted)
        try:
            outputs = [pictures.as_cpu() for pictures in self._pipeline.run()]
        except RuntimeError as error:
            self._pipeline = self._built()  # after an error the old one is of no use
            raise DaliRefusal(str(error)) from None
        return [
            [np.array(outputs[output].at(index)) for output in range(len(wanted))] for index, wanted in enumerate(sizes)
        ]

    def _built(self) -> Any:
        try:
            pipeline = build_pipeline(self._settings)
            pipeline.build()
        except RuntimeError as error:
            raise MissingRuntime(f"DALI does not start: {' '.join(str(error).split())}: {REMEDY}") from None
        return pipeline


def build_pipeline(settings: DaliSettings, side: int = 0) -> Any:
    """The pipeline, not built yet; with a `side` every picture becomes one square of it, and no sizes are fed.

    Raises:
        MissingRuntime: DALI is not installed, or finds no GPU.
    """
    require("nvidia.dali", "DALI", REMEDY)
    pipeline = require("nvidia.dali.pipeline", "DALI", REMEDY)
    fn, types = require("nvidia.dali.fn", "DALI", REMEDY), require("nvidia.dali.types", "DALI", REMEDY)
    made = pipeline.Pipeline(
        batch_size=settings.batch_size,
        num_threads=settings.threads,
        device_id=0 if settings.on_gpu else None,  # the worker sees one GPU
        prefetch_queue_depth=1,  # a batch is wanted now, not the next one too
    )
    with made:
        files = fn.external_source(name=FILES, dtype=types.UINT8, ndim=1, batch=True)
        pictures = fn.decoders.image(
            files,
            device="mixed" if settings.on_gpu else "cpu",
            output_type=types.RGB,
            jpeg_fancy_upsampling=True,  # as libjpeg does it
            **({"hw_decoder_load": settings.hw_decoder_load} if settings.on_gpu else {}),
        )
        wanted = [[side, side]] if side else [_external_size(fn, types, output) for output in range(MOST_SIZES)]
        filtered = {"interp_type": types.INTERP_CUBIC, "antialias": True}
        made.set_outputs(*(fn.resize(pictures, size=size, **filtered) for size in wanted))
    return made


def _external_size(fn: Any, types: Any, output: int) -> Any:
    return fn.external_source(name=f"{SIZES}_{output}", dtype=types.FLOAT, ndim=1, batch=True)
