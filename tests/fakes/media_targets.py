"""A decode worker that a picture can kill or hold up, as a bug in an image library would let it."""

from __future__ import annotations

import os
import signal
import struct
from typing import Any

from python_backends.media.worker import Arrays, DecodeWorker

_HEADER = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBB", 13, b"IHDR", 8, 8, 8, 2)
POISON = _HEADER + b"poison"
_WAIT = b"wait for "


def slow(pipe: str, width: int = 8, height: int = 8) -> bytes:
    """A picture that is being decoded until somebody has opened the named pipe for writing and closed it again."""
    return _HEADER[:16] + struct.pack(">IIBB", width, height, 8, 2) + _WAIT + pipe.encode()


class FragileDecodeWorker(DecodeWorker):
    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        data = arrays[0].tobytes()
        if data == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        if data[len(_HEADER) :].startswith(_WAIT):
            with open(data[len(_HEADER) + len(_WAIT) :]) as pipe:
                pipe.read()
            return [], {"error": "image: waited", "decode_ms": 0.0}
        return super().handle(op, arrays, meta)
