"""The shared-memory regions of a server: their name, and the sweep of those whose server is gone.

Triton's regions have names, and outlive a machine's SIGKILLs. A server locks a file beside its own for as long as it
lives; a lock that can be had is that of a dead one. Process numbers would not do: /dev/shm is shared between
containers that each count from 1.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

_SHM = Path("/dev/shm")
_STEM = "triton_python_backend_shm_region_"
_LOCK = "lock"


class Regions:
    """The names of one server's regions start with `prefix`; `lock_fd` must stay open as long as they are in use."""

    def __init__(self, http_port: int) -> None:
        self.prefix = f"{_STEM}{os.getpid()}_{http_port}_{secrets.token_hex(4)}_"
        self.lock_fd = os.open(_SHM / f"{self.prefix}{_LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock_fd, fcntl.LOCK_EX)

    def hand_over(self) -> None:
        """The lock is now held by the process that got `lock_fd` alone."""
        os.close(self.lock_fd)


def sweep() -> list[str]:
    """Remove the regions of servers that are gone; gives their names."""
    removed: list[str] = []
    for lock in _SHM.glob(f"{_STEM}*_{_LOCK}"):
        with contextlib.suppress(OSError):  # another user's, or just removed by its own server
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for region in sorted(_SHM.glob(f"{lock.name.removesuffix(_LOCK)}*")):
                    region.unlink(missing_ok=True)
                    removed.append(region.name)
            finally:
                os.close(fd)
    return removed
