"""Reads a file of settings that an operator wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_mapping(path: Path, what: str, error: type[ValueError]) -> dict[str, Any]:
    """The mapping that a YAML file holds; `error` (one line that names the file) when it can't be read, or is none."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as failure:
        raise error(f"{what} {path}: {failure.strerror or failure}") from failure
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        raise error(f"{what} {path} is not YAML: {' '.join(str(failure).split())}") from failure
    if not isinstance(raw, dict):
        raise error(f"{what} {path} must be a mapping")
    return raw
