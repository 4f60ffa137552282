"""What a client may put into the `image` tensor: a file, its base64, or a data: URI, told apart by content."""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Iterator

import numpy as np

from python_backends.errors import ServingError
from python_backends.media.limits import ImageLimits, refuse
from python_backends.media.sniff import BYTE_ORDER_MARK, Format, sniff

_HEADER_BYTES = 1024  # a data: URI's media type and parameters end before
_MAX_PERCENTS = 1_000_000  # in a data: URI; a picture that large is sent as base64, which has few or none
_HEAD = 64  # digits that show whether a picture begins there: a multiple of 4
_PIECE = 1 << 20  # bytes of base64 that are decoded at once: other threads get their turns in between
_BLANKS = b" \t\r\n\v\f"
_STANDARD = bytes.maketrans(b"-_", b"+/")  # from the URL-safe alphabet
_DIGITS = (string.ascii_letters + string.digits + "+/").encode()
_URL = re.compile(rb"\s*(https?|ftp|file|s3|gs|blob):", re.IGNORECASE)
_DATA_URI = re.compile(rb"\s*data:", re.IGNORECASE)


def unwrap(payload: bytes | memoryview, limits: ImageLimits) -> bytes:
    """The raw bytes of an image file, from whatever way they were sent.

    A payload that begins like a picture is one: no base64 of a picture begins like a picture. Only what does not is
    tried as text, and only as a whole, so that a raw file can't be taken for base64.

    Raises:
        ServingError: INVALID_ARG, when it is empty, too large, broken base64, a broken data: URI, or a URL.
    """
    limits.check_payload(len(payload))
    raw = _unwrap(bytes(payload))
    if not raw:
        raise refuse("it is empty (0 bytes)")
    limits.check_bytes(len(raw))
    return raw


def _unwrap(payload: bytes) -> bytes:
    if sniff(payload) is not None:
        return payload
    head = payload[:_HEADER_BYTES]
    if _DATA_URI.match(head):
        return _from_data_uri(payload)
    if url := _URL.match(head):
        scheme = url[1].decode().lower()
        raise refuse(f"a {scheme}: URL is not fetched; send the file's bytes, their base64, or a data: URI")
    try:
        return _from_base64(payload.removeprefix(BYTE_ORDER_MARK))
    except _NotBase64 as bad:
        if bad.at >= _HEAD and isinstance(sniff(bad.head), Format):
            raise bad.refusal("it") from None
        return payload  # some other file: the sniffer says what is accepted


def _from_data_uri(payload: bytes) -> bytes:
    start = payload.index(b":") + 1
    comma = payload.find(b",", start, start + _HEADER_BYTES)
    if comma < 0:
        raise refuse(f"the data: URI has no comma in its first {_HEADER_BYTES} bytes")
    parameters = payload[start:comma].lower().split(b";")
    data = _percent_decode(payload[comma + 1 :])
    if parameters[-1].strip() != b"base64":
        return data
    try:
        return _from_base64(data)
    except _NotBase64 as bad:
        raise bad.refusal("the data: URI") from None


class _NotBase64(Exception):
    """A text has a character that no base64 has, `at` so many digits; `head` is what its first ones say."""

    def __init__(self, digit: str, at: int, head: bytes) -> None:
        self.digit = digit
        self.at = at
        self.head = head

    def refusal(self, what: str) -> ServingError:
        return refuse(f"{what} is not valid base64: {self.digit!r} is not a base64 digit (at {self.at:,})")


def _from_base64(text: bytes) -> bytes:
    """Decode either alphabet, with or without padding and line breaks (ServingError; _NotBase64)."""
    files: list[bytes] = []
    left, before = b"", 0  # digits that do not fill three bytes yet, and how many were decoded
    for digits in _base64_digits(text.rstrip(_BLANKS + b"=")):
        piece = left + digits
        if others := piece.translate(None, _DIGITS):
            at = piece.index(others[:1])
            head = files[0] if files else binascii.a2b_base64(piece[: min(at, _HEAD) & ~3])
            raise _NotBase64(chr(others[0]), before + at, head)
        whole = len(piece) & ~3
        files.append(binascii.a2b_base64(piece[:whole]))
        left, before = piece[whole:], before + whole
    if len(left) == 1:  # no number of bytes makes so many digits
        raise refuse(f"base64 of {before + 1:,} digits is cut off")
    return b"".join([*files, binascii.a2b_base64(left + b"=" * (-len(left) % 4))])


def _base64_digits(text: bytes) -> Iterator[bytes]:
    """Piece by piece: in the standard alphabet, without line breaks."""
    for at in range(0, len(text), _PIECE):
        yield text[at : at + _PIECE].translate(_STANDARD, _BLANKS)


def _percent_decode(text: bytes) -> bytes:
    """As urllib.parse.unquote_to_bytes, which would make a list as long as there are percent signs in 40 MB of them."""
    percents = text.count(b"%")
    if not percents:
        return text
    if percents > _MAX_PERCENTS:
        raise refuse(f"the data: URI has {percents:,} percent signs, over the limit of {_MAX_PERCENTS:,}; send base64")
    codes = np.frombuffer(text, np.uint8)
    digits = _HEX[codes]
    marks = np.flatnonzero(codes[:-2] == ord("%"))
    marks = marks[(digits[marks + 1] < 16) & (digits[marks + 2] < 16)]
    decoded = codes.copy()
    decoded[marks] = digits[marks + 1] << 4 | digits[marks + 2]
    keep = np.ones(len(codes), bool)
    keep[marks + 1] = keep[marks + 2] = False
    return bytes(decoded[keep])


_HEX = np.full(256, 255, np.uint8)  # the value of a hexadecimal digit, 255 for what is none
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
