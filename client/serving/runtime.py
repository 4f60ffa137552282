"""Finding a tritonserver: the container's own, else the one inside the wheel nvidia-pytriton."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client.serving.errors import ServeError

PROJECT = Path(__file__).resolve().parents[2]
CONTAINER_BINARY = Path("/opt/tritonserver/bin/tritonserver")


@dataclass(frozen=True)
class Runtime:
    """A tritonserver: its binary, what its environment needs on top of ours, its backends (None: its default)."""

    binary: Path
    environment: Mapping[str, str]
    backends: Path | None = None


def find_runtime(scratch: Path) -> Runtime:
    """The tritonserver of this machine; `scratch` is a folder for the backend directory that the wheel's one needs.

    Raises:
        ServeError: there is none.
    """
    # The stubs ignore PYTHONPATH and take the packages of the first python3 on PATH; their workers heed PYTHONPATH.
    python_path = {
        "PATH": _join_paths(sysconfig.get_path("scripts"), os.environ.get("PATH", "")),
        "PYTHONPATH": _join_paths(*_package_roots(), os.environ.get("PYTHONPATH", "")),
    }
    on_path = shutil.which("tritonserver")
    if CONTAINER_BINARY.exists() or on_path:
        return Runtime(CONTAINER_BINARY if CONTAINER_BINARY.exists() else Path(str(on_path)), python_path)
    spec = importlib.util.find_spec("pytriton")
    if sys.version_info >= (3, 13):
        raise ServeError("no tritonserver found, and the CPU runtime has none for Python 3.13: use Python 3.10 to 3.12")
    if spec is None or spec.origin is None:
        raise ServeError(
            "no tritonserver found: run inside a tritonserver container, put tritonserver on PATH, "
            "or install the CPU runtime (pip install -c constraints.txt -e '.[cpu]')"
        )
    package = Path(spec.origin).parent
    libraries = (str(package.parent / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR")))
    library_path = _join_paths(*libraries, os.environ.get("LD_LIBRARY_PATH", ""))
    return Runtime(
        binary=package / "tritonserver" / "bin" / "tritonserver",
        environment=python_path | {"LD_LIBRARY_PATH": library_path},
        backends=_backend_directory(package / "tritonserver", scratch),
    )


def _backend_directory(wheel: Path, scratch: Path) -> Path:
    """A backend directory of links into the wheel: its Python backend, with the stub of this interpreter's version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        known = sorted(folder.name for folder in stub.parent.parent.iterdir())
        raise ServeError(f"the installed tritonserver has no stub for Python {version}; use one of {', '.join(known)}")
    backends = scratch / "backends"
    folder = backends / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (*(wheel / "backends" / "python").glob("*.*"), stub):
        link = folder / source.name
        if not link.exists() or not link.samefile(source):
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    return backends


def _package_roots() -> list[str]:
    """Where this project and its dependencies are."""
    return list(dict.fromkeys([str(PROJECT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))


def _join_paths(*paths: str) -> str:
    return os.pathsep.join(path for path in paths if path)
