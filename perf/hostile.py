"""What files that are made to hurt cost: processor time and memory of the decode stage, kind by kind.

    python -m perf.hostile                 # prints the table of docs/limits.md as measured now
    python -m perf.hostile --only "PNG"    # kinds whose name has this in it

The stage is the real one, with its worker process and the default limits. Time and memory are those of both processes
together, from the payload as sent to tiles or refusal.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from PIL import Image
from pillow_heif import register_heif_opener

from perf.decode_stage import artifacts_in, started, submit
from python_backends.errors import ServingError
from python_backends.media.stage import DecodeStage

SIDE = 8000  # 64 million pixels: the default of limits.image_pixels_mp
POOL = {"threads": 1, "timeout_ms": 60_000}
COLOUR = (10, 200, 30)


@dataclass(frozen=True)
class Cost:
    """Of one file."""

    answer: str  # "tile", or the refusal
    seconds: float  # of processor time
    megabytes: float  # at the peak, over what was there before


def _saved(kind: str, width: int, height: int, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), COLOUR if mode == "RGB" else 0).save(file, kind, **options)
    return file.getvalue()


def _png(width: int, height: int, *chunks: tuple[bytes, bytes], depth: int = 8, colour: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in ((b"IHDR", header), *chunks, (b"IEND", b""))
    )


def _png_of(side: int, depth: int, colour: int, bits: int) -> bytes:
    """Black: zlib packs a thousand zeros into one byte."""
    squeeze = zlib.compressobj(9)
    rows = b"".join(squeeze.compress(bytes(1 + side * bits // 8)) for _ in range(side)) + squeeze.flush()
    return _png(side, side, (b"IDAT", rows), depth=depth, colour=colour)


def _many_scans(side: int, pixels: int) -> bytes:
    """As many as cover so many pixels in all."""
    data = _saved("JPEG", side, side, progressive=True, quality=50)
    last = data.rfind(b"\xff\xda")
    return data[:last] + data[last:-2] * (pixels // side**2 - data.count(b"\xff\xda") + 1) + b"\xff\xd9"


def _tiff(*entries: tuple[int, int, int, int], after: bytes = b"") -> bytes:
    sides = ((256, 4, 1, 1000), (257, 4, 1, 1000), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1))
    tags = b"".join(struct.pack("<HHII", *entry) for entry in sorted((*sides, *entries)))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(sides) + len(entries)) + tags + b"\0" * 4 + after


def _directories(count: int) -> bytes:
    """A chain of directories, each pointing to the next, and the last to the first."""
    size = 2 + 5 * 12 + 4
    first = _tiff()[8 : 8 + size - 4]
    return b"II*\0\x08\0\0\0" + b"".join(first + struct.pack("<I", 8 + size * ((i + 1) % count)) for i in range(count))


def _animated(kind: str, frames: int, **options: object) -> bytes:
    file = io.BytesIO()
    pictures = [Image.new("RGB", (200, 200), (i, 0, 0)) for i in range(frames)]
    pictures[0].save(file, kind, save_all=True, append_images=pictures[1:], **options)
    return file.getvalue()


def _heic(side: int) -> bytes:
    register_heif_opener()
    return _saved("HEIF", side, side, tile_size=side // 4)


def _bomb(kind: bytes) -> bytes:
    return _png(2, 2, (kind, b"a\0\0" + zlib.compress(bytes(100 << 20), 9)), (b"IDAT", zlib.compress(bytes(6))))


# By the side of the largest picture. "Full" is a picture of that size.
KINDS: dict[str, Callable[[int], bytes]] = {
    "PNG that claims 50,000 x 50,000": lambda _: _png(50_000, 50_000, depth=1),
    "PNG, full, 1 bit": lambda side: _png_of(side, 1, 0, 1),
    "PNG, full, RGB": lambda side: _png_of(side, 8, 2, 24),
    "PNG, full, RGBA of 16 bit": lambda side: _png_of(side, 16, 6, 64),
    "PNG, half of full, RGBA of 16 bit": lambda side: _png_of(side * 7 // 10, 16, 6, 64),
    "PNG with a text of 100 MB, compressed": lambda _: _bomb(b"zTXt"),
    "PNG with a colour profile of 100 MB, compressed": lambda _: _bomb(b"iCCP"),
    "PNG of 17,000 chunks": lambda _: _png(2, 2, *[(b"tEXt", b"a\0b")] * 17_000),
    "PNG of 16,000 chunks": lambda _: _png(2, 2, *[(b"tEXt", b"a\0b")] * 16_000, (b"IDAT", zlib.compress(bytes(6)))),
    "PNG with 19 MB behind its end": lambda _: _saved("PNG", 8, 8) + bytes(19_000_000),
    "JPEG, full": lambda side: _saved("JPEG", side, side),
    "JPEG, full, progressive": lambda side: _saved("JPEG", side, side, progressive=True),
    "JPEG, full, in as many scans as are allowed": lambda side: _many_scans(side, 1_200_000_000),
    "JPEG, full, in more scans": lambda side: _many_scans(side, 1_300_000_000),
    "JPEG behind 19 MB of fill bytes": lambda _: b"\xff\xd8" + b"\xff" * 19_000_000 + _saved("JPEG", 8, 8)[2:],
    "JPEG behind 290 comments of 64 KB": lambda _: (
        b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 290 + _saved("JPEG", 8, 8)[2:]
    ),
    "JPEG cut in the middle": lambda side: _saved("JPEG", side, side)[: side * 5],
    "WebP, full": lambda side: _saved("WEBP", side, side, method=0),
    "WebP, full, lossless": lambda side: _saved("WEBP", side, side, lossless=True, method=0),
    "WebP of 30 frames": lambda _: _animated("WEBP", 30, method=0),
    "GIF, full": lambda side: _saved("GIF", side, side, "L"),
    "GIF of 65,535 x 65,535": lambda _: b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0",
    "GIF of 100 frames": lambda _: _animated("GIF", 100),
    "BMP of 54 bytes that claims a full picture": lambda side: (
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, side, side, 1, 8, 1, 0, 0, 0, 0, 0)
    ),
    "TIFF, full, LZW": lambda side: _saved("TIFF", side, side, compression="tiff_lzw"),
    "TIFF, full, fax": lambda side: _saved("TIFF", side, side, "1", compression="group4"),
    "TIFF of 200,000 directories in a ring": lambda _: _directories(200_000),
    "TIFF of 5,000 tags": lambda _: _tiff(*[(700 + i, 3, 1, 8) for i in range(5000)]),
    "TIFF whose 50 tags share 90 KB": lambda _: _tiff(
        *[(700 + i, 7, 90_000, 8) for i in range(50)], after=bytes(90_000)
    ),
    "TIFF of 100,000 tiles": lambda _: _tiff((324, 4, 100_000, 8), after=bytes(500_000)),
    "AVIF, a quarter of full": lambda side: _saved("AVIF", side // 2, side // 2, speed=10),
    "HEIC, a quarter of full, in a grid": lambda side: _heic(side // 2),
    "HEIC of 19 MB of empty boxes": lambda _: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0\0\0\x08free" * 2_300_000,
    "1 x 65,535 pixels": lambda _: _saved("PNG", 1, 65_535),
    "1 x 4,000 pixels": lambda _: _saved("PNG", 1, 4_000),
    "1 x 1 pixel": lambda _: _saved("PNG", 1, 1),
    "polyglot of JPEG and ZIP": lambda _: _saved("JPEG", 8, 8) + b"PK\3\4" + bytes(1000),
    "polyglot of GIF and HTML": lambda _: b"GIF89a/*<html><script>*/=1;</script>" + bytes(1000),
    "base64 of 19 MB, in lines": lambda _: base64.encodebytes(_saved("PNG", 8, 8) + bytes(19_000_000)),
    "data: URI of 13 million percent signs": lambda _: b"data:image/png," + b"%41" * 13_000_000,
    "payload of 60 MB": lambda _: bytes(60_000_000),
}


class Stage:
    """The decode stage under measurement."""

    def __init__(self, stage: DecodeStage, worker: psutil.Process) -> None:
        self._stage = stage
        self._processes = (psutil.Process(), worker)

    def cost(self, file: bytes) -> Cost:
        """Of one file, decoded alone."""
        before = sum(process.memory_info().rss for process in self._processes)  # holds the file, and what made it
        for process in self._processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak counts from here
        begin = self._seconds()
        answer = submit(self._stage, file).result(60)
        return Cost(
            answer.message if isinstance(answer, ServingError) else "tile",
            self._seconds() - begin,
            max(0, sum(peak_bytes(process.pid) for process in self._processes) - before) / 1e6,
        )

    def _seconds(self) -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._processes))


def peak_bytes(pid: int) -> int:
    """The most resident memory a process has had (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def running_stage(side: int = SIDE) -> Iterator[Stage]:
    """The largest picture is a square of that side; the other limits are the defaults."""
    with tempfile.TemporaryDirectory() as folder:
        decoding = DecodeStage("image_decode", artifacts_in(Path(folder), POOL, image_pixels_mp=side**2 / 1e6))
        try:
            worker = started(decoding)
            submit(decoding, _saved("PNG", 8, 8)).result(60)
            yield Stage(decoding, worker)
        finally:
            decoding.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of the kinds to measure")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {time.strftime('%F')}\n\n| kind | bytes | answer | processor s | MB |")
    for kind, make in KINDS.items():
        if options.only in kind:
            file = make(SIDE)
            with running_stage() as stage:  # a new one: what an allocator kept would not be counted again
                cost = stage.cost(file)
            figures = f"{cost.seconds:.2f} | {cost.megabytes:.0f}"
            print(f"| {kind} | {len(file):,} | {cost.answer} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
