"""Runs tritonserver for `tvlm`, and leaves neither processes nor shared memory behind, however either of them ends.

Run as a script:  guard.py PARENT_PID GRACE_S REGION_PREFIX BINARY ARGUMENTS...   Exits with tritonserver's status.
SIGTERM drains for GRACE_S seconds, SIGQUIT ends all at once. When `tvlm` ends, be it by SIGKILL, the kernel sends this
process a SIGQUIT; and should this process be the one that dies, tritonserver a SIGKILL.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)  # here, as after a fork beside other threads loading it could hang
_SIGNALS = {signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD}
_EXIT_S = 10  # tritonserver's own exit timeout is the grace time; past it and these seconds it hangs


def _main() -> None:
    parent, grace_s, regions, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned stubs and workers become children, to be waited for
    prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != parent:  # it ended before the kernel knew
        sys.exit(1)
    server = subprocess.Popen(command, preexec_fn=_become_server)  # noqa: PLW1509  (there is one thread)
    _wait(server, grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-server.pid, 0)
    for region in Path("/dev/shm").glob(f"{regions}*"):
        region.unlink(missing_ok=True)
    sys.exit(server.returncode if server.returncode >= 0 else 128 - server.returncode)


def _wait(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Wait until tritonserver has ended, or has no more time to."""
    deadline = None
    while server.poll() is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        received = signal.sigwaitinfo(_SIGNALS) if left is None else signal.sigtimedwait(_SIGNALS, left)
        if received is None or received.si_signo == signal.SIGQUIT:
            return
        if received.si_signo == signal.SIGTERM and deadline is None:
            deadline = time.monotonic() + grace_s + _EXIT_S
            server.terminate()


def _become_server() -> None:
    """In the child before exec: a process group of its own, which its stubs and workers share."""
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def prctl(option: int, value: int) -> None:
    """The system call of that name (OSError)."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _main()
