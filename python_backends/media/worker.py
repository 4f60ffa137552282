"""The media decode stage as it runs in its worker process."""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from python_backends.errors import ServingError
from python_backends.media.decode import decode_file
from python_backends.media.limits import ImageLimits
from python_backends.media.payload import unwrap
from python_backends.media.sniff import read_header

Arrays = list[NDArray[Any]]

_BYTES_PER_PIXEL = 24  # of the decoder that needs most, measured: WebP 15, others up to 5
_SPARE_BYTES = 1 << 30  # payloads, thread stacks and allocator arenas


class DecodeWorker:
    """Decodes the pictures of a batch side by side: Pillow's codecs and its resize release the GIL.

    The reply goes when the slowest picture of the call is done: a picture waits for its batch's slowest one. With no
    queue delay a batch is only what came in during the last one, so this costs at most one slow picture's time, and
    image_pixels_mp bounds that; a second instance of the stage halves it.

    config: tile_size (pixels of a side), max_bytes, max_pixels, threads (0: all cores).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._tile_size = int(config["tile_size"])
        self._limits = ImageLimits(int(config["max_bytes"]), int(config["max_pixels"]))
        threads = int(config.get("threads", 0)) or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._budget = _PixelBudget(self._limits.max_pixels)
        Image.init()  # all plugins now, not with the first picture
        Image.MAX_IMAGE_PIXELS = self._limits.max_pixels  # Pillow's own guard, for what hides behind a small header
        _limit_memory(_BYTES_PER_PIXEL * self._limits.max_pixels + _SPARE_BYTES)
        warnings.simplefilter("ignore")  # oddities in clients' metadata
        _silence_native_code()

    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        """`decode`: arrays are uint8 payloads as clients sent them.

        Gives one uint8 [1, size, size, 3] an item, [0, size, size, 3] where it failed; meta["errors"] has a sentence
        or None, and meta["decode_ms"] the time, for each.
        """
        if op != "decode":
            raise ValueError(f"unknown operation '{op}'")
        results = list(self._pool.map(self._decode, arrays))
        return [tiles for tiles, _, _ in results], {
            "errors": [error for _, error, _ in results],
            "decode_ms": [milliseconds for _, _, milliseconds in results],
        }

    def _decode(self, payload: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], str | None, float]:
        started = time.perf_counter()
        size = self._tile_size
        tiles, error = np.empty((0, size, size, 3), np.uint8), None
        try:
            data = unwrap(payload.tobytes(), self._limits)
            header = read_header(data, self._limits)
            with self._budget.hold(header.width * header.height):
                tiles = decode_file(data, header, size, self._limits)[np.newaxis]
        except ServingError as refusal:
            error = refusal.message
        return tiles, error, (time.perf_counter() - started) * 1000


class _PixelBudget:
    """Bounds the memory of pictures that are decoded at a time: as many as one of the largest size may take."""

    def __init__(self, pixels: int) -> None:
        self._limit = self._free = pixels
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()


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
