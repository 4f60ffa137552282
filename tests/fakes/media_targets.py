"""A decode worker that a picture can kill, as a bug in an image library would let it."""

from __future__ import annotations

import os
import signal
from typing import Any

from python_backends.media.worker import Arrays, DecodeWorker

POISON = b"\x89PNG\r\n\x1a\npoison"


class FragileDecodeWorker(DecodeWorker):
    def handle(self, op: str, arrays: Arrays, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
        if any(array.tobytes() == POISON for array in arrays):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().handle(op, arrays, meta)
