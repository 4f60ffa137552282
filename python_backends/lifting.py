"""Pictures are lifted out of JSON before it is parsed, so that parsing costs what its text costs, which is bounded.

json and pydantic hold Python's global lock until they are done: with 30 MB they would hold up an event loop from any
thread. What is lifted lies between two quotes and has none in it, so the JSON is as valid without it as it was with it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

MAX_VALUES = 100_000  # in the text, counted by commas and brackets: parsed within some 15 ms, and 10 MB as objects
_SHORT = 1024  # bytes of a data: URI that may as well stay
_BEGIN = b'"data:'
_PIECE, _MOST_PIECE = 1024, 1 << 18  # bytes
_KEY = re.compile(rb'"(?:image_)?url"\s{0,32}:\s{0,32}$')
_KEY_BYTES = 96
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


class TooMuchText(ValueError):
    """The text is over a limit; the message is the end of a sentence, without the limit's name."""


@dataclass(frozen=True)
class Lifted:
    """`text` is the JSON with `data:,#N` in the place of picture N. A client that writes that gets its own picture."""

    text: bytes
    pictures: tuple[memoryview, ...]

    @property
    def picture_bytes(self) -> int:
        """Of all pictures."""
        return sum(len(picture) for picture in self.pictures)

    def data_uri(self, url: str) -> bytes:
        """The data: URI that a `url` of the parsed text stands for: one that was lifted, or itself.

        Raises:
            UnicodeEncodeError: it holds half a surrogate pair.
        """
        number = url.removeprefix("data:,#")
        if number.isdecimal() and number.isascii() and len(number) < 9 and int(number) < len(self.pictures):
            return _unescaped(bytes(self.pictures[int(number)]))
        return url.encode()


def lift(raw: bytes | bytearray | memoryview, most_bytes: int) -> Lifted:
    """Take the long data: URIs under the keys `url` and `image_url` out of a JSON text.

    It looks at `most_bytes` and no further, but for the ends of pictures.

    Raises:
        TooMuchText: what remains is over `most_bytes` or MAX_VALUES.
    """
    whole = memoryview(raw)
    pieces: list[bytes | memoryview] = []
    pictures: list[memoryview] = []
    left, at, look = most_bytes, 0, 0  # bytes of text that may still come; where the next piece and the search begin
    while (begin := _find(whole, _BEGIN, look, at + left + len(_BEGIN))) >= 0:
        end = _find(whole, b'"', begin + 1, len(whole))
        look = begin + len(_BEGIN)
        key = _KEY.search(whole[max(0, begin - _KEY_BYTES) : begin])
        if end - begin <= _SHORT or whole[end - 1] == ord("\\") or key is None:
            continue
        pieces += [whole[at : begin + 1], b"data:,#%d" % len(pictures)]
        pictures.append(whole[begin + 1 : end])
        left -= begin + 1 - at
        at = look = end
    if len(whole) - at > left:
        raise TooMuchText(f"{len(whole):,} bytes, of which more than {most_bytes:,} are not pictures")
    text = b"".join([*pieces, whole[at:]])
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MAX_VALUES:
        counted = f"{values:,} JSON values, counted by commas and brackets,"
        raise TooMuchText(f"{counted} are over the limit of {MAX_VALUES:,}")
    return Lifted(text, tuple(pictures))


def _find(whole: memoryview, what: bytes, start: int, end: int) -> int:
    """As `bytes.find`, without a copy of the whole: in pieces that grow with the way."""
    end, size = min(end, len(whole)), _PIECE
    while start < end:
        found = bytes(whole[start : min(start + size, end)]).find(what)
        if found >= 0:
            return start + found
        start += max(1, size - len(what) + 1)
        size = min(2 * size, _MOST_PIECE)
    return -1


def _unescaped(text: bytes) -> bytes:
    """JSON's escapes undone: some write `/` and `+` so. One by one, so that other threads get their turns."""
    return _ESCAPE.sub(lambda escape: _character(escape[0]), text) if b"\\" in text else text


@functools.lru_cache(1024)
def _character(escape: bytes) -> bytes:
    if len(escape) > 2:
        return chr(int(escape[2:], 16)).encode("utf-8", "surrogatepass")
    return _ESCAPED.get(escape[1:], escape[1:])
