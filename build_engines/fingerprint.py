"""What a build was made from, so that the next one can tell quickly what is still good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.facts import is_huggingface, source_files
from build_engines.gguf_wheel import locate_gguf
from python_backends.deployment import Deployment
from python_backends.pools import Device

BUILD_FILE = "build.json"
_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent
_ROOMS = (_ROOT / "model_repository", _ROOT / "ensemble")
# Their versions shape artifacts. Those that export (torch, ...) do too, but may be gone where a build is only served.
_LIBRARIES = {
    "cpu": ("openvino", "openvino-genai", "gguf", "tokenizers"),
    "gpu": ("tensorrt", "tensorrt-llm", "tokenizers"),
}
_REMEDIES = {
    "cpu": "install this project with the extra [cpu]",
    "gpu": "build in the image of containers/Dockerfile, beside the GPU that will serve",
}
_HASHED_BYTES = 32 << 20  # files up to this size are known by content, larger ones by size and time


@dataclass(frozen=True)
class Record:
    """`artifacts/build.json`: inputs as name -> fingerprint, and every file of the result as path -> bytes."""

    inputs: dict[str, str]
    files: dict[str, int]

    def write(self, artifacts: Path) -> None:
        """Store it with the artifacts."""
        (artifacts / BUILD_FILE).write_text(json.dumps(asdict(self), indent=1))

    def add(self, artifact: Path, artifacts: Path) -> None:
        """Store that one more artifact is done, in a build that goes on."""
        paths = [artifact] if artifact.is_file() else [path for path in artifact.rglob("*") if path.is_file()]
        self.files.update({str(path.relative_to(artifacts.parent)): path.stat().st_size for path in paths})
        self.write(artifacts)


def read_record(output: Path) -> Record | None:
    """The record of the build in `output`; None when there is none that is readable."""
    try:
        return Record(**json.loads((output / "artifacts" / BUILD_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def current_inputs(deployment: Deployment) -> dict[str, str]:
    """Fingerprints of everything that a build of this deployment reads (BuildError: something is not installed)."""
    inputs = {
        "deployment": _digest(deployment.model_dump_json().encode()),
        "code": _tree((*_PACKAGE.glob("*.py"), *(_PACKAGE / "huggingface").glob("*.py"))),
        "schema": _file(_ROOT / "python_backends" / "checkpoint.py"),
        "models": _tree(path for room in _ROOMS for suffix in ("py", "pbtxt") for path in room.rglob(f"*.{suffix}")),
        "libraries": _library_versions(deployment.profile),
        "weights": deployment.pools.text.weights,
    }
    if deployment.profile == "gpu":
        vision = deployment.pools.vision
        sizes = f"{vision.profiles()} {deployment.limits.image_tokens}"
        inputs["plan"] = f"{vision.precision} {sizes} {_gpu_names()}"
    elif not is_huggingface(deployment.checkpoint):
        inputs["llm"] = _file(locate_gguf())
    return inputs | {f"checkpoint/{path.name}": _file(path) for path in source_files(deployment.checkpoint)}


def files_of(output: Path) -> dict[str, int]:
    """Every file of a composed repository with its size, paths relative to `output`."""
    return {
        str(path.relative_to(output)): path.stat().st_size
        for path in sorted(output.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name != BUILD_FILE
    }


def is_complete(record: Record, output: Path) -> bool:
    """Whether all files of a build are there with their sizes."""
    return record.files.items() <= files_of(output).items()


def _library_versions(profile: Device) -> str:
    try:
        return " ".join(f"{name}={metadata.version(name)}" for name in _LIBRARIES[profile])
    except metadata.PackageNotFoundError as error:
        raise BuildError(f"{error.name} is not installed: {_REMEDIES[profile]}") from error


def _gpu_names() -> str:
    """A TensorRT plan is for one kind of GPU."""
    cards = Path("/proc/driver/nvidia/gpus").glob("*/information")
    lines = [line for card in cards for line in card.read_text().splitlines()]
    return ", ".join(sorted({line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}))


def _file(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > _HASHED_BYTES:
            return f"{status.st_size} bytes, {status.st_mtime_ns}"
        return _digest(path.read_bytes())
    except FileNotFoundError:
        return "missing"


def _tree(paths: Iterable[Path]) -> str:
    return _digest(b"".join(f"{path.relative_to(_ROOT)} {_file(path)}\n".encode() for path in sorted(paths)))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
