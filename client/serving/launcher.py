"""Becomes tritonserver, after asking the kernel to end it when `tvlm` ends, however that happens.

Run as a script:  launcher.py PARENT_PID BINARY ARGUMENTS...   A script of its own rather than a preexec_fn, as Python
code between fork and exec can deadlock in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _main() -> None:
    parent, binary = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)
    os.execv(binary, sys.argv[2:])


if __name__ == "__main__":
    _main()
