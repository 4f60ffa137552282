"""Which format a file is in, from its first bytes, and how large its picture is, from its header.

Pure Python with bounded work: the router calls it on what anybody sends, where a crash of native code would be fatal.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass

from python_backends.media import headers, heif, orientation
from python_backends.media.effort import check_effort
from python_backends.media.limits import ImageLimits, refuse


@dataclass(frozen=True)
class Format:
    """A format that can be accepted; `name` is Pillow's for it, `label` is for people."""

    name: str
    label: str
    size: Callable[[bytes], tuple[int, int]]
    orientation: Callable[[bytes], int]
    needs: str = "PIL"  # the module that decodes it, as far as it may be missing
    crop: Callable[[bytes], tuple[int, int] | None] = lambda _: None  # of formats that show all that they store


@dataclass(frozen=True)
class ImageHeader:
    """What a file says of itself. Width and height are as decoded; then `crop` is left, and turned (EXIF, 1 to 8)."""

    format: str
    width: int
    height: int
    orientation: int = 1
    crop: tuple[int, int] | None = None

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height as people see the picture: what tiles and visual tokens are counted from."""
        width, height = self.crop or (self.width, self.height)
        return (height, width) if self.orientation >= 5 else (width, height)


JPEG = Format("JPEG", "JPEG", headers.jpeg_size, orientation.jpeg_orientation)
PNG = Format("PNG", "PNG", headers.png_size, orientation.png_orientation)
WEBP = Format("WEBP", "WebP", headers.webp_size, orientation.webp_orientation, "PIL._webp")
GIF = Format("GIF", "GIF", headers.gif_size, orientation.upright)
BMP = Format("BMP", "BMP", headers.bmp_size, orientation.upright)
TIFF = Format("TIFF", "TIFF", headers.tiff_size, orientation.tiff_orientation)
AVIF = Format("AVIF", "AVIF", heif.heif_size, heif.heif_orientation, "PIL._avif")
HEIC = Format("HEIF", "HEIC", heif.heif_size, heif.heif_orientation, "pillow_heif", heif.heic_crop)

# Looked up, not imported: the router, which runs this too, has no use for native code.
ACCEPTED = tuple(
    format_
    for format_ in (JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, HEIC)
    if importlib.util.find_spec(format_.needs) is not None
)

_MAGIC: tuple[tuple[bytes, Format | str], ...] = (
    (b"\xff\xd8\xff", JPEG),
    (headers.PNG_MAGIC, PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"MM\0+", TIFF),
    (b"%PDF-", "PDF"),
    (b"8BPS", "PSD"),
    (b"\0\0\1\0", "ICO"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (b"PK\3\4", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"%!PS", "PostScript"),
    (b"RIFF", "RIFF audio or video"),
)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The first bytes of JPEG and PNG, decoded as Latin-1, or with replacement characters, and written as UTF-8.
_READ_AS_TEXT = tuple(text.encode() for text in ("\xff\xd8\xff", "\ufffd" * 3, "\x89PNG", "\ufffdPNG"))
_TEXTS = (
    ((b"<!doctype html", b"<html"), "an HTML page"),
    ((b"<?xml", b"<"), "XML"),
    ((b"{", b"["), "JSON"),
)
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}


def sniff(data: bytes) -> Format | str | None:
    """A format that is known; the name of what no part of this product can decode; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WEBP
    if data[4:8] == b"ftyp":
        return _iso_media(data)
    # "BM" alone is also how base64 or a sentence may begin
    if data[:2] == b"BM" and len(data) >= 26 and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return BMP
    return next((format_ for magic, format_ in _MAGIC if data.startswith(magic)), None)


def _iso_media(data: bytes) -> Format | str:
    end = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
    if brands & {b"avif", b"avis"}:
        return AVIF
    if brands & _HEIF_BRANDS:
        return HEIC
    return "MP4 or QuickTime video"


def accepted(data: bytes) -> Format | str:
    """The format of a file, or the end of a sentence that says why it can't be taken."""
    found = sniff(data)
    if isinstance(found, Format) and found in ACCEPTED:
        return found
    name = found.label if isinstance(found, Format) else found or _other(data)
    return f"{name} is not supported (accepted: {', '.join(format_.label for format_ in ACCEPTED)})"


def read_header(data: bytes, limits: ImageLimits) -> ImageHeader:
    """Format and size of an encoded file, checked against the limits; nothing is decoded.

    Raises:
        ServingError: INVALID_ARG, when the format is not accepted, the header is broken, or a limit is passed.
    """
    if not data:
        raise refuse("it is empty (0 bytes)")
    limits.check_bytes(len(data))
    found = accepted(data)
    if isinstance(found, str):
        raise refuse(found)
    try:
        width, height = found.size(data)
        limits.check_size(width, height)
        check_effort(found.name, data, width * height, limits.max_pixels)
    except (headers.BrokenHeader, struct.error, IndexError, OverflowError) as error:
        problem = str(error) if isinstance(error, headers.BrokenHeader) else "it ends within its header"
        raise refuse(f"{found.label} of {len(data):,} bytes has no readable header: {problem}") from None
    try:
        return ImageHeader(found.name, width, height, found.orientation(data), found.crop(data))
    except (headers.BrokenHeader, struct.error, IndexError, OverflowError):
        return ImageHeader(found.name, width, height)  # broken metadata are no reason to refuse a picture


def _other(data: bytes) -> str:
    text = data[:512].removeprefix(BYTE_ORDER_MARK).lstrip().lower()
    if data.startswith(_READ_AS_TEXT):
        return "a picture that was read as text, which loses its bytes,"
    if b"<svg" in text:
        return "SVG"
    for begins, name in _TEXTS:
        if text.startswith(begins):
            return name
    head = data[:16]
    if head.isascii() and head.decode().isprintable():
        return f"text of {len(data):,} bytes that begins with {head.decode()!r}"
    return f"a file of {len(data):,} bytes that begins with {data[:8].hex(' ')}"
