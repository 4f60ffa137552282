"""Which way up a picture is, and so how wide it is, is known from its header, as decoders see it."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from python_backends.media.tiling import AnyResolution, PatchGrid, Size
from tests.media.make_corpus import HEIGHT, WIDTH, base, exif

LIMITS = ImageLimits(max_bytes=1_000_000, max_pixels=1_000_000)
KINDS = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": 444},
    "TIFF": {},
}


def turned(kind: str, orientation: int) -> bytes:
    tag = {"tiffinfo": exif(orientation)} if kind == "TIFF" else {"exif": exif(orientation).tobytes()}
    file = io.BytesIO()
    base().save(file, kind, **KINDS[kind], **tag)
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_every_orientation_is_read_from_the_header_and_obeyed(kind: str, orientation: int) -> None:
    data = turned(kind, orientation)
    header = read_header(data, LIMITS)
    assert header.orientation == orientation
    tagged = base()
    tagged.getexif()[274] = orientation
    upright = ImageOps.exif_transpose(tagged)
    assert header.upright_size == upright.size
    expected = np.asarray(upright.resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(decode(data, 32, LIMITS) - expected).mean() < 2


def test_visual_tokens_are_those_of_the_upright_picture() -> None:
    portrait, landscape = Size(HEIGHT, WIDTH), Size(WIDTH, HEIGHT)
    known = Size(*read_header(turned("JPEG", 6), LIMITS).upright_size)
    for rule in (PatchGrid(), AnyResolution(16, [Size(16, 48), Size(48, 16), Size(32, 16)], 4)):
        assert rule.grid(known) == rule.grid(portrait) != rule.grid(landscape)
        assert rule.tokens(known) == rule.tokens(portrait)


def jpeg_with(*segments: bytes) -> bytes:
    file = io.BytesIO()
    base().save(file, "JPEG")
    return b"\xff\xd8" + b"".join(segments) + file.getvalue()[2:]


def segment(body: bytes, marker: int = 0xE1) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def tiff_tag(order: str, value: int, kind: int = 3) -> bytes:
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 1)
    return head + struct.pack(order + "HHI" + ("H2x" if kind == 3 else "I"), 274, kind, 1, value) + b"\0" * 4


@pytest.mark.parametrize(
    ("data", "orientation"),
    [
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 6))), 6),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag(">", 8))), 8),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 6, kind=4))), 6),
        (jpeg_with(segment(b"JFXX\0", 0xE0), segment(b"http://ns.adobe.com/xap/1.0/\0<x/>"),
                   segment(b"c" * 60_000, 0xFE), segment(b"Exif\0\0" + tiff_tag(">", 5))), 5),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 3)), segment(b"Exif\0\0" + tiff_tag("<", 6))), 3),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 0))), 1),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 9))), 1),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 6, kind=12))), 1),
        (jpeg_with(segment(b"Exif\0\0" + tiff_tag("<", 6)[:16])), 1),
        (jpeg_with(segment(b"Exif\0\0II*\0\xff\xff\xff\xff")), 1),
        (jpeg_with(segment(b"Exif\0\0")), 1),
        (jpeg_with() + segment(b"Exif\0\0" + tiff_tag("<", 6)), 1),
    ],
    ids=["little endian", "big endian", "32 bit", "behind others", "first of two", "0", "9", "float", "cut off",
         "nowhere", "empty", "behind the picture"],
)  # fmt: skip
def test_exif_as_cameras_and_others_write_it(data: bytes, orientation: int) -> None:
    assert read_header(data, LIMITS).orientation == orientation
    decode(data, 32, LIMITS)
