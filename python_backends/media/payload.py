"""What a client may put into the `image` tensor: a file, its base64, or a data: URI, told apart by content."""

from __future__ import annotations

import binascii
import re

import numpy as np

from python_backends.errors import ServingError
from python_backends.media.limits import ImageLimits, refuse
from python_backends.media.sniff import BYTE_ORDER_MARK, Format, sniff

_HEADER_BYTES = 1024  # a data: URI's media type and parameters end before
_MAX_PERCENTS = 1_000_000  # in a data: URI; a picture that large is sent as base64, which has few or none
_HEAD = 64  # digits that show whether a picture begins there: a multiple of 4
_BLANKS = b" \t\r\n\v\f"
_STANDARD = bytes.maketrans(b"-_", b"+/")  # from the URL-safe alphabet
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_URL = re.compile(rb"\s*(https?|ftp|file|s3|gs|blob):", re.IGNORECASE)
_DATA_URI = re.compile(rb"\s*data:", re.IGNORECASE)


def unwrap(payload: bytes, limits: ImageLimits) -> bytes:
    """The raw bytes of an image file, from whatever way they were sent.

    A payload that begins like a picture is one: no base64 of a picture begins like a picture. Only what does not is
    tried as text, and only as a whole, so that a raw file can't be taken for base64.

    Raises:
        ServingError: INVALID_ARG, when it is empty, too large, broken base64, a broken data: URI, or a URL.
    """
    limits.check_payload(len(payload))
    raw = _unwrap(payload)
    if not raw:
        raise refuse("it is empty (0 bytes)")
    limits.check_bytes(len(raw))
    return raw


def _unwrap(payload: bytes) -> bytes:
    if sniff(payload) is not None:
        return payload
    if _DATA_URI.match(payload):
        return _from_data_uri(payload)
    if url := _URL.match(payload):
        scheme = url[1].decode().lower()
        raise refuse(f"a {scheme}: URL is not fetched; send the file's bytes, their base64, or a data: URI")
    digits = _base64_digits(payload.removeprefix(BYTE_ORDER_MARK))
    if bad := _NOT_BASE64.search(digits):
        if bad.start() >= _HEAD and isinstance(sniff(binascii.a2b_base64(digits[:_HEAD])), Format):
            raise _not_base64("it", bad)
        return payload  # some other file: the sniffer says what is accepted
    return _from_base64(digits)


def _from_data_uri(payload: bytes) -> bytes:
    start = payload.index(b":") + 1
    comma = payload.find(b",", start, start + _HEADER_BYTES)
    if comma < 0:
        raise refuse(f"the data: URI has no comma in its first {_HEADER_BYTES} bytes")
    parameters = payload[start:comma].lower().split(b";")
    data = _percent_decode(payload[comma + 1 :])
    if parameters[-1].strip() != b"base64":
        return data
    digits = _base64_digits(data)
    if bad := _NOT_BASE64.search(digits):
        raise _not_base64("the data: URI", bad)
    return _from_base64(digits)


def _not_base64(what: str, bad: re.Match[bytes]) -> ServingError:
    digit = bad[0].decode("latin-1")
    return refuse(f"{what} is not valid base64: {digit!r} is not a base64 digit (at {bad.start():,})")


def _base64_digits(text: bytes) -> bytes:
    """In the standard alphabet, without line breaks and padding."""
    return text.translate(_STANDARD, _BLANKS).rstrip(b"=")


def _from_base64(digits: bytes) -> bytes:
    if len(digits) % 4 == 1:  # no number of bytes makes this many digits
        raise refuse(f"base64 of {len(digits):,} digits is cut off")
    return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))


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
