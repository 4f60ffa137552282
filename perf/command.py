"""How a measurement's command ends: what it can't do for want of a file, a server or a value is one line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from client.serving.errors import ServeError
from client.types import VlmError


def run(main: Callable[[], int | None]) -> None:
    """Run it, and exit with its status: 1 and a sentence when it was refused something."""
    try:
        status = main()
    except (OSError, RuntimeError, ValueError, ServeError, VlmError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(status)
