"""Files that are broken, lie, or are made to hurt: a tile or one sentence, soon, and within the limits."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from python_backends.errors import ServingError, Status
from python_backends.media.decode import decode
from python_backends.media.limits import ImageLimits
from python_backends.media.sniff import read_header
from tests.media.make_corpus import FOLDER

LIMITS = ImageLimits(max_bytes=1_000_000, max_pixels=1_000_000)
FILES = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow on odd metadata
FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))


def refusal(data: bytes, limits: ImageLimits = LIMITS) -> str | None:
    """The sentence it is refused with, None when it gives a tile."""
    try:
        tile = decode(data, 32, limits)
    except ServingError as error:
        assert error.status is Status.INVALID_ARG
        assert error.message.startswith("image: ")
        assert "\n" not in error.message
        return error.message
    assert tile.shape == (32, 32, 3)
    assert tile.dtype == np.uint8
    return None


def png(width: int, height: int, *chunks: tuple[bytes, bytes], depth: int = 8, colour: int = 0) -> bytes:
    parts = [b"\x89PNG\r\n\x1a\n"]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    for kind, body in ((b"IHDR", header), *chunks, (b"IEND", b"")):
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


def test_the_longer_side_is_limited_by_itself() -> None:
    limits = ImageLimits(max_bytes=1_000_000, max_pixels=1_000_000, max_side=300)
    assert read_header(png(300, 20), limits).width == 300
    with pytest.raises(ServingError, match=r"20 x 301 .* limit of 300 pixels a side \(limits.image_side\)"):
        read_header(png(20, 301), limits)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (png(13_000, 13_000, depth=1), "13000 x 13000 = 169,000,000 pixels are over the limit of 1,000,000 pixels"),
        (png(2**31 - 1, 1), "over the limit of 65,535 pixels a side"),
        (png(0, 5), "the size of 0 x 5 pixels in its header is not possible"),
        (b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0", "= 4,294,836,225 pixels are over the limit"),
        (b"RIFF\0\0\0\0WEBPVP8X" + struct.pack("<I", 10) + b"\0" * 4 + b"\xff" * 6, "pixels a side"),
        (b"BM" + b"\0" * 12 + struct.pack("<Iii", 40, 60_000, -60_000) + b"\0" * 30, "60000 x 60000 = 3,600,000,000"),
        (b"II*\0\x08\0\0\0\2\0" + struct.pack("<HHIIHHII", 256, 4, 1, 50_000, 257, 4, 1, 50_000), "= 2,500,000,000"),
        (b"II+\0\x08\0\0\0" + b"\xff" * 8, "TIFF of 16 bytes has no readable header: it ends within its header"),
        (b"\xff\xd8\xff" + b"\xe0\0\2" * 3, "JPEG of 12 bytes has no readable header: it has no start of a frame"),
        (b"\xff\xd8" + b"\xff\xfe\0\2" * 200_000, "has no readable header"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image: SVG is not supported (accepted: JPEG, PNG, WebP, GIF,"),
        (b"<?xml version='1.0'?><svg/>", "image: SVG is not supported"),
        (b"<!DOCTYPE html><html>404</html>", "image: an HTML page is not supported"),
        (b"%PDF-1.7", "image: PDF is not supported"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40, "HEIC of 64 bytes has no readable header: it names"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42" + b"\0" * 40, "image: MP4 or QuickTime video is not supported"),
        (b"", "image: it is empty (0 bytes)"),
        (b"\x01\x02", "image: a file of 2 bytes that begins with 01 02 is not supported"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_refused_from_the_header_alone(data: bytes, problem: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ServingError) as error:
        read_header(data, LIMITS)
    assert problem in error.value.message
    assert time.perf_counter() - started < 0.5


def test_a_small_screen_does_not_hide_a_large_frame() -> None:
    large = bytearray(saved(Image.new("P", (3000, 3000)), "GIF"))
    large[6:10] = struct.pack("<HH", 10, 10)
    assert read_header(bytes(large), LIMITS).width == 10
    assert "3000 x 3000 = 9,000,000 pixels are over the limit" in str(refusal(bytes(large)))


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_compressed_metadata_are_no_bomb(kind: bytes) -> None:
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    body = b"key\0" + (b"\1\0\0\0" if kind == b"iTXt" else b"\0") + bomb
    image = png(2, 2, (kind, body), (b"IDAT", zlib.compress(b"\0\0\0\0\0\0")))
    started = time.perf_counter()
    refusal(image)  # a tile without the metadata, or a sentence: either will do
    assert time.perf_counter() - started < 2


def tiff(*entries: tuple[int, int, int, int], data: bytes = b"") -> bytes:
    sides = ((256, 4, 1, 1000), (257, 4, 1, 1000), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1))
    directory = b"".join(struct.pack("<HHII", *entry) for entry in sorted((*sides, *entries)))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(sides) + len(entries)) + directory + b"\0" * 4 + data


def many_scans() -> bytes:
    data = saved(Image.new("RGB", (1000, 1000)), "JPEG", progressive=True)
    last = data.rfind(b"\xff\xda")
    return data[:last] + data[last:-2] * 2000 + b"\xff\xd9"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (png(2, 2, *[(b"tEXt", b"a\0b")] * 17_000), "PNG of more than 16,384 chunks"),
        (many_scans(), "scans of 1,000,000 pixels each is over the limit of 1,200,000,000 in all"),
        (
            tiff((324, 4, 100_000, 8), data=b"\0" * 500_000),
            "TIFF of 100,000 strips or tiles is over the limit of 65,536",
        ),
        (tiff(*[(700 + i, 7, 90_000, 8) for i in range(50)], data=b"\0" * 90_000), "bytes claims 4,500,"),
        (tiff(*[(700 + i, 3, 1, 8) for i in range(5000)]), "TIFF of 5,005 tags is over the limit of 1,024 tags"),
    ],
    ids=["chunks", "scans", "tiles", "shared tag data", "tags"],
)
def test_busywork_is_refused(data: bytes, problem: str) -> None:
    started = time.perf_counter()
    assert problem in str(refusal(data, ImageLimits(max_bytes=2_000_000, max_pixels=1_000_000)))
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3, 3), (1, 4000), (65_535, 1)])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_thin_pictures_decode(size: tuple[int, int], kind: str) -> None:
    tile = decode(saved(Image.new("RGB", size, (10, 200, 30)), kind), 32, LIMITS)
    np.testing.assert_array_equal(tile, np.full((32, 32, 3), (10, 200, 30)))


@pytest.mark.parametrize("name", FILES)
def test_data_after_the_end_change_nothing(name: str) -> None:
    np.testing.assert_array_equal(decode(FILES[name] + b"\0trailing" * 9, 32, LIMITS), decode(FILES[name], 32, LIMITS))


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_a_tile_or_a_sentence(name: str) -> None:
    data = FILES[name]
    for end in _cuts(len(data)):
        refusal(data[:end])
    if "animated" not in name and "pages" not in name:  # their first half may hold all of the first picture
        assert refusal(data[: len(data) // 2]), "half a picture is not a picture"


def _cuts(length: int) -> Iterator[int]:
    yield from range(0, min(length, 64))
    yield from range(64, length, max(1, length // 16))


@settings(max_examples=FUZZ_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=6)), min_size=1, max_size=5),
    graft=st.none() | st.tuples(st.sampled_from(sorted(FILES)), st.floats(0, 1)),
)
@example(name="jpeg_baseline.jpg", changes=[(0.0, b"\xff")], graft=("png_rgb.png", 0.0))
def test_mutated_files_give_a_tile_or_a_sentence(
    name: str, changes: list[tuple[float, bytes]], graft: tuple[str, float] | None
) -> None:
    data = bytearray(FILES[name])
    for where, patch in changes:
        at = int(where * len(data))
        data[at : at + len(patch)] = patch
    if graft:
        other = FILES[graft[0]]
        data[int(graft[1] * len(data)) :] = other[int(graft[1] * len(other)) :]
    refusal(bytes(data))
