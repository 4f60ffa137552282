"""Which way up a picture is, from the headers of the accepted formats, without decoding (AVIF and HEIC: `heif`).

Each function takes a whole file whose size could be read and gives an EXIF orientation, 1 to 8 (5 to 8 exchange width
and height). Metadata that are broken or absent mean 1: they are no reason to refuse a picture. As in browsers, XMP and
"raw profiles" in PNG texts have no say.
"""

from __future__ import annotations

import struct

from python_backends.media.headers import first_directory, jpeg_segments, png_chunks, webp_chunks

_TAG = 274
_APP1, _SCAN = 0xE1, 0xDA
_EXIF = b"Exif\0\0"  # begins the segment in JPEG; some writers put it into PNG and WebP too
_WEBP_HAS_EXIF = 0x08  # flag of the extended format


def jpeg_orientation(data: bytes) -> int:
    """From the first Exif segment before the picture data."""
    for marker, body in jpeg_segments(data):
        if marker == _SCAN:
            break
        if marker == _APP1 and data.startswith(_EXIF, body + 2):
            return _from_exif(data[body + 2 : body + int.from_bytes(data[body : body + 2], "big")])
    return 1


def png_orientation(data: bytes) -> int:
    """From the eXIf chunk, wherever it stands."""
    return next((_from_exif(data[body:end]) for kind, body, end in png_chunks(data) if kind == b"eXIf"), 1)


def webp_orientation(data: bytes) -> int:
    """From the EXIF chunk, which only the extended format has, behind the picture."""
    if data[12:16] != b"VP8X" or not data[20] & _WEBP_HAS_EXIF:
        return 1
    return next((_from_exif(data[body:end]) for kind, body, end in webp_chunks(data) if kind == b"EXIF"), 1)


def tiff_orientation(data: bytes) -> int:
    """From the first directory."""
    order, entries, value_at = first_directory(data)
    for entry in entries:
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if tag == _TAG:
            code = {1: "B", 3: "H", 4: "I"}.get(kind)
            value: int = struct.unpack_from(order + code, data, entry + value_at)[0] if code else 1
            return value if 1 <= value <= 8 else 1
    return 1


def upright(data: bytes) -> int:
    """Formats that can't say."""
    return 1


def _from_exif(exif: bytes) -> int:
    """EXIF data are a TIFF file without a picture."""
    exif = exif.removeprefix(_EXIF)
    return tiff_orientation(exif) if exif[:4] in (b"II*\0", b"MM\0*") else 1
