"""The media decode stage as it runs in its worker process."""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from python_backends.checkpoint import Checkpoint
from python_backends.errors import ServingError
from python_backends.media.decode import decode_file
from python_backends.media.layout import Layout
from python_backends.media.limits import SMALL_PIXELS, ImageLimits
from python_backends.media.sniff import ImageHeader

Arrays = list[NDArray[Any]]

_BYTES_PER_PIXEL = 24  # of the decoder that needs most, measured: WebP 15, others up to 5
_SPARE_BYTES = 1 << 30  # payloads, thread stacks and allocator arenas


class DecodeWorker:
    """Decodes pictures side by side, each a call of its own: Pillow's codecs and its resize release the GIL.

    config: checkpoint (its facts), max_bytes, max_pixels, max_side, threads (small pictures at a time).
    """

    side_by_side = True
    bounds_memory = True

    def __init__(self, config: dict[str, Any]) -> None:
        self._layout = Layout.of(Checkpoint.model_validate(config["checkpoint"]))
        self._limits = ImageLimits(*(int(config[name]) for name in ("max_bytes", "max_pixels", "max_side")))
        Image.init()  # all plugins now, not with the first picture
        Image.MAX_IMAGE_PIXELS = self._limits.max_pixels  # Pillow's own guard, for what hides behind a small header
        pixels = self._limits.max_pixels + int(config["threads"]) * SMALL_PIXELS
        if self.bounds_memory:
            _limit_memory(_BYTES_PER_PIXEL * pixels + _SPARE_BYTES)
        warnings.simplefilter("ignore")  # oddities in clients' metadata
        _silence_native_code()

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`decode`: one file, uint8, whose header was checked; meta are the fields of its ImageHeader, and `alone`.

        Gives uint8 [tiles, side, side, 3], or nothing and a sentence in meta["error"]; meta["decode_ms"] is the time.
        """
        if op != "decode":
            raise ValueError(f"unknown operation '{op}'")
        started = time.perf_counter()
        (file,) = arrays
        alone = meta.pop("alone")
        tiles: Arrays = []
        error = None
        try:
            tiles = [decode_file(file.tobytes(), ImageHeader(**meta), self._layout, self._limits, alone=alone)]
        except ServingError as refusal:
            error = refusal.message
        return tiles, {"error": error, "decode_ms": (time.perf_counter() - started) * 1000}


def _silence_native_code() -> None:
    """Image libraries write a line to stderr for every broken row of a file: clients must not fill the log."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # Python's own messages go on
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _limit_memory(more_bytes: int) -> None:
    """Let this process take that much more address space: what would take all memory then fails by itself."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
