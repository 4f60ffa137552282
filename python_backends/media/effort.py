"""What a file costs to decode beyond its pixels: parts that a decoder walks, repeats or copies one by one.

Measured with Pillow 13: 1.2 million PNG chunks in 18 MB take 9 s; a 64-megapixel JPEG of 0.4 MB whose last scan is
repeated 60 times 9 s; TIFF tags may all claim the same 20 MB, and Pillow copies them for each.
"""

from __future__ import annotations

import itertools
import struct

from python_backends.media.headers import MAX_CHUNKS, jpeg_segments, png_chunks
from python_backends.media.limits import refuse

_MAX_PNG_BITS = 32  # a pixel, of a picture of the largest size: deeper ones may be so much smaller
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_MAX_SCAN_PIXELS = 1_200_000_000  # 64 megapixels in 18 scans: progressive files have about 10
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)  # markers of frames: baseline, extended, arithmetic coding
_SCAN = 0xDA
_MAX_STRIPS = 65_536
_MAX_TAGS = 1_024
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}


def check_effort(name: str, data: bytes, pixels: int, max_pixels: int) -> None:
    """Refuse a file made to keep its decoder busy (ServingError)."""
    if name == "PNG":
        _check_png(data, pixels, max_pixels)
    elif name == "JPEG":
        _check_jpeg(data, pixels)
    elif name == "TIFF":
        _check_tiff(data)


def _check_png(data: bytes, pixels: int, max_pixels: int) -> None:
    bits = data[24] * _PNG_CHANNELS.get(data[25], 1)  # of a header that has been found to be readable
    if pixels * bits > max_pixels * _MAX_PNG_BITS:
        raise refuse(
            f"PNG of {pixels:,} pixels of {bits} bits is over the limit of {max_pixels:,} pixels "
            f"of {_MAX_PNG_BITS} bits (limits.image_pixels_mp)"
        )
    chunks = itertools.takewhile(lambda chunk: chunk[0] != b"IEND", png_chunks(data))
    if sum(1 for _ in chunks) == MAX_CHUNKS:
        raise refuse(f"PNG of more than {MAX_CHUNKS:,} chunks")


def _check_jpeg(data: bytes, pixels: int) -> None:
    if _is_one_scan(data):
        return
    scans = data.count(b"\xff\xda")  # never within picture data, where a 00 follows each ff
    if scans * pixels > _MAX_SCAN_PIXELS:
        raise refuse(
            f"JPEG of {scans:,} scans of {pixels:,} pixels each is over the limit of {_MAX_SCAN_PIXELS:,} in all"
        )


def _is_one_scan(data: bytes) -> bool:
    """Whether the decoder will stop after the first scan: not progressive, and that scan has every component.

    True of most photographs, and known without going through their data.
    """
    components = None
    for marker, at in jpeg_segments(data):
        if components is None and marker in _SEQUENTIAL:
            components = data[at + 7]
        elif marker == _SCAN:
            return data[at + 2] == components
    return False


def _check_tiff(data: bytes) -> None:
    """The first directory, which has been found to be readable."""
    order = "<" if data[:2] == b"II" else ">"
    if data[2:4] in (b"+\0", b"\0+"):
        offset_code, count_code, entry_code, first, step = "8xQ", "Q", "HHQ", 8, 20
    else:
        offset_code, count_code, entry_code, first, step = "4xI", "H", "HHI", 2, 12
    (offset,) = struct.unpack_from(order + offset_code, data)
    (tags,) = struct.unpack_from(order + count_code, data, offset)
    if tags > _MAX_TAGS:
        raise refuse(f"TIFF of {tags:,} tags is over the limit of {_MAX_TAGS:,} tags")
    total = 0
    for at in range(offset + first, min(offset + first + tags * step, len(data) - step + 1), step):
        tag, kind, count = struct.unpack_from(order + entry_code, data, at)
        if tag in (273, 324) and count > _MAX_STRIPS:
            raise refuse(f"TIFF of {count:,} strips or tiles is over the limit of {_MAX_STRIPS:,}")
        total += count * _TYPE_BYTES.get(kind, 1)
    if total > len(data):
        raise refuse(f"TIFF of {len(data):,} bytes claims {total:,} bytes of tags")
