"""Run a build step in a process of its own.

OpenVINO takes hundreds of megabytes and doesn't give them back, and whoever builds often goes on to serve; a crash in
native code must become an error message; Ctrl-C must work while C++ is busy; and steps can run side by side.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from build_engines.errors import BuildError

_REFUSED = 3  # exit status of a child that raised a BuildError


def run_isolated(target: str, source: Path, output: Path, *options: str) -> None:
    """Call `target` ("module:function") with these in a fresh interpreter (BuildError when it fails)."""
    root = str(Path(__file__).resolve().parent.parent)
    search_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # subprocess.run kills the child when it is left by an exception
    result = subprocess.run(
        [sys.executable, "-m", "build_engines.isolated", target, str(source), str(output), *options],
        env={**os.environ, "PYTHONPATH": search_path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        return
    lines = result.stderr.strip().splitlines()
    last = lines[-1] if lines else "no message"
    if result.returncode == _REFUSED:
        raise BuildError(last)
    raise BuildError(f"{target.partition(':')[2]} failed with exit status {result.returncode}: {last}")


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # C++ would not notice a KeyboardInterrupt
    module, _, function = sys.argv[1].partition(":")
    try:
        source, output, *options = sys.argv[2:]
        getattr(importlib.import_module(module), function)(Path(source), Path(output), *options)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_REFUSED)


if __name__ == "__main__":
    _main()
