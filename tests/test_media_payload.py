"""What a client sends as an image, in all the ways it may be written, is the same file."""

from __future__ import annotations

import base64
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.errors import ServingError, Status
from python_backends.media.limits import ImageLimits
from python_backends.media.payload import _percent_decode, unwrap
from python_backends.media.sniff import read_header
from tests.media.make_corpus import FOLDER

LIMITS = ImageLimits(max_bytes=100_000, max_pixels=1_000_000)
FILES = sorted(FOLDER.iterdir())
PNG = (FOLDER / "png_rgb.png").read_bytes()
PLAIN = base64.b64encode(PNG)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_raw_files_and_their_base64_are_the_same_picture(path: object) -> None:
    raw = path.read_bytes()  # type: ignore[attr-defined]
    assert unwrap(raw, LIMITS) == raw
    assert unwrap(base64.b64encode(raw), LIMITS) == raw


@pytest.mark.parametrize(
    "payload",
    [
        base64.encodebytes(PNG),
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.rstrip(b"="),
        base64.urlsafe_b64encode(PNG),
        b"\r\n  " + PLAIN + b"\r\n",
        b"data:image/png;base64," + PLAIN,
        b"data:image/png;charset=utf-8;base64," + PLAIN,
        b"data:;base64," + PLAIN,
        b"DATA:image/png;BASE64," + PLAIN,
        b"data:image/png;base64," + base64.encodebytes(PNG),
        b"data:image/png;base64," + quote_from_bytes(PLAIN, safe="").encode(),
        b"data:image/png," + quote_from_bytes(PNG).encode(),
        b"data:image/jpeg;base64," + PLAIN,  # the content decides, not the label
    ],
)
def test_every_way_of_writing_a_file_gives_its_bytes(payload: bytes) -> None:
    assert unwrap(payload, LIMITS) == PNG


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", r"image: it is empty \(0 bytes\)"),
        (b" \n", r"image: it is empty \(0 bytes\)"),
        (b"data:image/png,", "image: it is empty"),
        (b"data:image/png;base64", "image: the data: URI has no comma in its first 1024 bytes"),
        (b"data:" + b"x" * 5000 + b"," + PLAIN, "image: the data: URI has no comma"),
        (b"data:image/png;base64,iVBOR*==", "image: the data: URI is not valid base64: '\\*' is not"),
        (b"iVBOR", "image: base64 of 5 digits is cut off"),
        (PLAIN[:80] + b"!" + PLAIN[80:], r"image: it is not valid base64: '!' is not a base64 digit \(at 80\)"),
        (base64.b64encode(PNG[:100]) + PLAIN, "image: it is not valid base64: '=' is not a base64 digit"),
        (b"https://example.com/cat.png", "image: a https: URL is not fetched"),
        (b"file:///etc/passwd", "image: a file: URL is not fetched"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 100_000, r"100,008 bytes are over the limit of 100,000 bytes \(limits.image_"),
        (base64.b64encode(b"x" * 100_001), r"100,001 bytes are over the limit of 100,000 bytes"),
        (b"A" * 300_000, "300,000 bytes as sent are over twice the limit of 100,000 bytes"),
    ],
)
def test_what_can_not_be_a_picture_is_refused_with_the_reason(payload: bytes, problem: str) -> None:
    with pytest.raises(ServingError, match=problem) as error:
        unwrap(payload, LIMITS)
    assert error.value.status is Status.INVALID_ARG


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (str(PLAIN).encode(), f"""text of {len(PLAIN) + 3} bytes that begins with "b'iVBORw0KGgoAAA" """),
        (base64.b64encode(PLAIN), f"text of {len(PLAIN)} bytes that begins with 'iVBORw0KGgoAAAAN' "),
        (base64.b64encode(b"data:image/png;base64," + PLAIN),
         f"text of {len(PLAIN) + 22} bytes that begins with 'data:image/png;b' "),
        (PNG.decode("latin-1").encode(), "a picture that was read as text, which loses its bytes, "),
        (PNG.decode("utf-8", "replace").encode(), "a picture that was read as text, which loses its bytes, "),
        (b"\xff\xd8\xff\xe0".decode("utf-8", "replace").encode(), "a picture that was read as text, "),
        (PLAIN.decode().encode("utf-16"), f"a file of {2 + 2 * len(PLAIN)} bytes that begins with ff fe "),
        (b"/home/user/cat.png", "text of 18 bytes that begins with '/home/user/cat.p' "),
    ],
)  # fmt: skip
def test_mistakes_in_wrapping_are_recognisable(payload: bytes, name: str) -> None:
    with pytest.raises(ServingError) as error:
        read_header(unwrap(payload, LIMITS), LIMITS)
    assert error.value.message.startswith(f"image: {name}")


@given(st.binary(max_size=300) | st.text("%0123abcXYZ", max_size=300).map(str.encode))
def test_percent_decoding_is_that_of_urllib(text: bytes) -> None:
    assert _percent_decode(text) == unquote_to_bytes(text)


@given(st.binary(max_size=400))
def test_any_bytes_give_bytes_or_a_refusal(payload: bytes) -> None:
    try:
        assert unwrap(payload, LIMITS)
    except ServingError as error:
        assert error.message.startswith("image: ")


def test_a_payload_of_percent_signs_is_refused_before_it_is_decoded() -> None:
    limits = ImageLimits(max_bytes=20_000_000, max_pixels=1)
    with pytest.raises(ServingError, match="image: the data: URI has 5,000,000 percent signs, over the limit of 1,000"):
        unwrap(b"data:," + b"%41" * 5_000_000, limits)
