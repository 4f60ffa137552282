"""Sizes and turns from the boxes of AVIF and HEIC files (ISO/IEC 14496-12 and 23008-12), without decoding.

As in `headers`: every walk is bounded, and a file that ends too early raises struct.error or IndexError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from python_backends.media.headers import MAX_PARTS, BrokenHeader

Range = tuple[int, int]  # where a body begins and ends
# Boxes that lead to sizes, with the bytes before their first child.
_CONTAINERS = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"moov": 0, b"trak": 0}
# By quarter turns anticlockwise, then by mirroring: none, top to bottom, left to right.
_ORIENTATIONS = ((1, 4, 2), (8, 5, 7), (3, 2, 4), (6, 7, 5))


def heif_size(data: bytes) -> tuple[int, int]:
    """The largest picture (primary, tiles, thumbnails, alpha) or, in a sequence, track: what may have to be decoded."""
    sizes = [
        struct.unpack_from(">II", data, at + 4) if kind == b"ispe" else _track_size(data, at)
        for kind, at in _all_sizes(data)
    ]
    if not sizes:
        raise BrokenHeader("it names no size")
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return width, height


def heif_orientation(data: bytes) -> int:
    """As EXIF would say it, of the primary picture. EXIF data of these files only repeat it, or have no meaning."""
    boxes = _primary_properties(data)
    turns = data[boxes[b"irot"]] & 3 if b"irot" in boxes else 0
    mirrored = 1 + (data[boxes[b"imir"]] & 1) if b"imir" in boxes else 0
    return _ORIENTATIONS[turns][mirrored]


def heic_crop(data: bytes) -> tuple[int, int] | None:
    """Width and height of the primary picture: its clean aperture, or its own size where others are larger."""
    boxes = _primary_properties(data)
    if b"clap" in boxes:
        width, of_width, height, of_height = struct.unpack_from(">4I", data, boxes[b"clap"])
        if width and of_width and height and of_height:
            return max(1, width // of_width), max(1, height // of_height)
    if b"ispe" in boxes:
        width, height = struct.unpack_from(">II", data, boxes[b"ispe"] + 4)
        return width, height
    return None


def _primary_properties(data: bytes) -> dict[bytes, int]:
    """Kind and body of the boxes that describe the picture which is shown."""
    start, end = _child(data, (0, len(data)), b"meta")
    meta = (start + 4, end)
    properties = _child(data, meta, b"iprp")
    known = list(_children(data, _child(data, properties, b"ipco")))
    pitm, _ = _child(data, meta, b"pitm")
    (primary,) = struct.unpack_from(">I" if data[pitm] else ">H", data, pitm + 4)
    found = {}
    for number in _associated(data, _child(data, properties, b"ipma")[0], primary):
        if 1 <= number <= len(known):
            kind, (body, _) = known[number - 1]
            found[kind] = body
    return found


def _associated(data: bytes, at: int, picture: int) -> list[int]:
    """Which properties a picture has, counted from 1 (`ipma`)."""
    version, wide = data[at], data[at + 3] & 1
    (count,) = struct.unpack_from(">I", data, at + 4)
    at += 8
    for _ in range(min(count, MAX_PARTS)):
        number, properties = struct.unpack_from(">IB" if version else ">HB", data, at)
        at += 5 if version else 3
        if number == picture:
            numbers = struct.unpack_from(f">{properties}{'H' if wide else 'B'}", data, at)
            return [number & (0x7FFF if wide else 0x7F) for number in numbers]  # the first bit: is it essential
        at += properties * (2 if wide else 1)
    return []


def _children(data: bytes, within: Range) -> Iterator[tuple[bytes, Range]]:
    at, end = within
    for _ in range(MAX_PARTS):
        box = _box(data, at, end)
        if box is None:
            return
        kind, body, at = box
        yield kind, (body, at)


def _child(data: bytes, within: Range, kind: bytes) -> Range:
    for found, body in _children(data, within):
        if found == kind:
            return body
    raise BrokenHeader(f"it has no {kind.decode()} box")


def _box(data: bytes, at: int, end: int) -> tuple[bytes, int, int] | None:
    """Kind, body and end of the box that begins here; None where none does, or it is cut off."""
    if at + 8 > end:
        return None
    size, kind = struct.unpack_from(">I4s", data, at)
    body = at + 8
    if size == 1:
        (size,) = struct.unpack_from(">Q", data, body)
        body += 8
    box_end = end if size == 0 else at + size
    return (kind, body, box_end) if body <= box_end <= end else None


def _all_sizes(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Kind and body of every `ispe` and `tkhd`, wherever they are."""
    open_ranges = [(0, len(data))]
    for _ in range(MAX_PARTS):
        if not open_ranges:
            return
        at, end = open_ranges.pop()
        box = _box(data, at, end)
        if box is None:
            continue
        kind, body, box_end = box
        open_ranges.append((box_end, end))
        if kind in _CONTAINERS:
            open_ranges.append((body + _CONTAINERS[kind], box_end))
        elif kind in (b"ispe", b"tkhd"):
            yield kind, body


def _track_size(data: bytes, at: int) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, at + (88 if data[at] == 1 else 76))
    return width >> 16, height >> 16  # 16.16 fixed point
