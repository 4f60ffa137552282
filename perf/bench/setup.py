"""What the runs in a folder were measured with: runs of anything else don't belong beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perf.bench.machine import Machine
from perf.bench.store import SETUP
from python_backends.deployment import DeploymentError
from python_backends.yaml_file import read_mapping


@dataclass(frozen=True)
class Setup:
    """All that must stay the same from the first run to the last; the commit may change, each run has its own."""

    level: str
    cpu: str
    cores: int
    deployment: str  # hash of its values
    variants: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, level: str, machine: Machine, deployment: Path, variants: Mapping[str, Mapping[str, Any]]) -> Setup:
        """Of a bench that is about to run."""
        values = read_mapping(deployment, "deployment file", DeploymentError)
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return cls(level, machine.cpu, machine.cores, digest[:16], variants)

    def fits(self, folder: Path) -> bool:
        """Whether runs of this may go into a folder, which has some."""
        return (folder / SETUP).exists() and not self._differs(folder)

    def claim(self, folder: Path) -> None:
        """Make it the folder's own; variants join those that have run there.

        Raises:
            ValueError: the folder's runs were measured with something else.
        """
        if differing := self._differs(folder):
            raise ValueError(f"{folder} holds runs of another {differing}: name another folder with --output")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tools").mkdir(exist_ok=True)
        theirs = _read(folder)
        variants = {**(theirs.variants if theirs else {}), **self.variants}
        partial = folder / f"{SETUP}.partial"
        partial.write_text(json.dumps(asdict(replace(self, variants=variants)), indent=1) + "\n")
        partial.replace(folder / SETUP)

    def _differs(self, folder: Path) -> str:
        """What, as a few words; nothing when all is the same."""
        if not _has_runs(folder):
            return ""
        theirs = _read(folder)
        if theirs is None:
            return "version of this bench"
        for name in ("level", "cpu", "cores", "deployment"):
            if getattr(theirs, name) != getattr(self, name):
                return f"{name} ({getattr(theirs, name)}, now {getattr(self, name)})"
        for name, changes in self.variants.items():
            if theirs.variants.get(name, changes) != changes and _has_runs(folder, name):
                return f"variant {name} ({dict(theirs.variants[name])})"
        return ""


def _read(folder: Path) -> Setup | None:
    """What ran there; None where that is not known."""
    try:
        return Setup(**json.loads((folder / SETUP).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _has_runs(folder: Path, arm: str = "*") -> bool:
    return any((folder / "runs").glob(f"*.{arm}.jsonl"))
