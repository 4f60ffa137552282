"""Deployments with some values changed, for experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from python_backends.deployment import load_built_deployment


def parse_changes(items: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE items, such as pools.vision.nice=5; values are YAML.

    Raises:
        ValueError: an item has no `=`, or a value that is no YAML.
    """
    changes = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise ValueError(f"{item!r} is not KEY=VALUE, such as pools.vision.nice=5")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"{item!r}: the value is no YAML") from None
    return changes


def changed(deployment: Path, changes: Mapping[str, Any], target: Path) -> Path:
    """Write the deployment with these values (dotted keys) to `target`; gives `target` (ValueError: no such key)."""
    values = yaml.safe_load(deployment.read_text())
    values["checkpoint"] = str((deployment.parent / values["checkpoint"]).resolve())
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ValueError(f"{key}: {part} is no section of the deployment")
        section[name] = value
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(values))
    return target


def llm_config(artifacts: Path, **changes: Any) -> dict[str, Any]:
    """What the LLM adapter of a composed deployment is given, with these values of its text pool."""
    deployment = load_built_deployment(artifacts).model_dump(mode="json")
    deployment["pools"]["text"].update(changes)
    return {"artifacts": str(artifacts), "deployment": deployment}
