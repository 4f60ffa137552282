"""Width and height from the headers of the accepted formats, without decoding.

Each function takes a whole file whose magic bytes are right and gives (width, height) as stored. A header that ends
too early raises struct.error, IndexError or OverflowError; one that makes no sense raises BrokenHeader. Every walk is
bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MAX_CHUNKS = 16_384  # of a PNG file: encoders write the picture in chunks of 8 KB or more
MAX_PARTS = 4096  # segments, directory entries or boxes to look at: real files have tens


class BrokenHeader(ValueError):
    """The header can't be understood; the message is the end of a sentence."""


def png_size(data: bytes) -> tuple[int, int]:
    """The IHDR chunk comes first."""
    if data[12:16] != b"IHDR":
        raise BrokenHeader("its first chunk is not IHDR")
    width, height = struct.unpack_from(">IIxx", data, 16)
    return width, height


def gif_size(data: bytes) -> tuple[int, int]:
    """The logical screen."""
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def bmp_size(data: bytes) -> tuple[int, int]:
    """Height is negative when the rows are stored from the top."""
    (header_size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header_size == 12 else "<ii", data, 18)
    return width, abs(height)


def webp_size(data: bytes) -> tuple[int, int]:
    """From the lossy or lossless frame header, or the canvas of the extended format."""
    chunk = data[12:16]
    if chunk == b"VP8X":
        (low_width, high_width, low_height, high_height) = struct.unpack_from("<HBHB", data, 24)
        return (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    if chunk == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise BrokenHeader("its lossless frame has no signature")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise BrokenHeader("its frame has no start code")
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise BrokenHeader("its first chunk is none of VP8, VP8L, VP8X")


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind of each chunk, and where its body begins and ends."""
    at = len(PNG_MAGIC)
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at + 8, at + 8 + length
        at += 12 + length


def webp_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """As `png_chunks`."""
    at = 12
    for _ in range(MAX_PARTS):
        if at + 8 > len(data):
            return
        kind, length = struct.unpack_from("<4sI", data, at)
        yield kind, at + 8, at + 8 + length
        at += 8 + length + length % 2


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker of each segment, up to the first picture data, and where its length stands."""
    at = 2
    for _ in range(MAX_PARTS):
        at = data.find(b"\xff", at)  # decoders skip what lies between segments
        if at < 0:
            return
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:  # no length follows
            at += 2
        else:
            yield marker, at + 2
            if marker in (0xD9, 0xDA):  # the end, or a scan
                return
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])


def jpeg_size(data: bytes) -> tuple[int, int]:
    """From the first start-of-frame segment."""
    for marker, at in jpeg_segments(data):
        if marker in (0xD9, 0xDA):
            raise BrokenHeader("the picture data come before its size")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
    raise BrokenHeader("it has no start of a frame")


def first_directory(data: bytes) -> tuple[str, range, int]:
    """Of a TIFF file, classic or BigTIFF: byte order, where each entry stands, and where in an entry its value does."""
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    if big:
        (offset,) = struct.unpack_from(order + "Q", data, 8)
        (count,) = struct.unpack_from(order + "Q", data, offset)
        first, step, value_at = offset + 8, 20, 12
    else:
        (offset,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, offset)
        first, step, value_at = offset + 2, 12, 8
    if offset > len(data):
        raise BrokenHeader("its directory lies beyond its end")
    return order, range(first, first + step * min(count, MAX_PARTS), step), value_at


def tiff_size(data: bytes) -> tuple[int, int]:
    """From the first directory."""
    order, entries, value_at = first_directory(data)
    sides: dict[int, int] = {}
    for entry in entries:
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if tag in (256, 257):
            code = {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind)
            if code is None:
                raise BrokenHeader(f"its size is of type {kind}")
            (sides[tag],) = struct.unpack_from(order + code, data, entry + value_at)
        if len(sides) == 2:
            return sides[256], sides[257]
    raise BrokenHeader("its first directory names no size")
