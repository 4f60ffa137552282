"""What the runs in a folder were measured with: runs of anything else don't belong beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from perf.bench.machine import Machine

_FILE = "setup.json"


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
        values = yaml.safe_load(deployment.read_text())
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return cls(level, machine.cpu, machine.cores, digest[:16], variants)

    def claim(self, folder: Path) -> None:
        """Write it into a folder that has none; variants join those that are there.

        Raises:
            ValueError: the folder's runs were measured with something else.
        """
        file = folder / _FILE
        mine = asdict(self)
        if file.exists():
            theirs = json.loads(file.read_text())
            mine["variants"] = theirs["variants"] | mine["variants"]
            theirs["variants"] |= {name: self.variants[name] for name in self.variants.keys() - theirs["variants"]}
            if differing := [name for name in mine if mine[name] != theirs[name]]:
                raise ValueError(
                    f"{folder} holds runs with another {differing[0]} ({theirs[differing[0]]}, now "
                    f"{mine[differing[0]]}): name another folder with --output"
                )
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(mine, indent=1) + "\n")
