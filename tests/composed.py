"""The demo deployment composed once, under build/, and kept between test sessions."""

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from build_engines import build, is_stale
from perf.deployments import changed

ROOT = Path(__file__).parents[1]
DEPLOYMENT = ROOT / "deployments" / "demo-cpu.yaml"
BUILD = ROOT / "build"


@cache
def composed_demo(replicas: int = 1) -> Path:
    """Its output folder; with another number of replicas it is the same deployment else, and takes over the weights."""
    if replicas != 1:
        return composed_with({"pools.text.replicas": replicas}, BUILD / f"test-demo-{replicas}")
    return _fresh(DEPLOYMENT, BUILD / "test-demo")


def composed_with(changes: Mapping[str, Any], output: Path) -> Path:
    """The demo deployment with other values (dotted keys), in `output`; its weights are taken over."""
    demo = composed_demo()
    with _alone():
        if not output.exists():
            shutil.copytree(demo, output, ignore=shutil.ignore_patterns("*.log"))
        return _fresh(changed(DEPLOYMENT, changes, output.with_suffix(".yaml")), output)


def _fresh(deployment: Path, output: Path) -> Path:
    with _alone():
        if is_stale(deployment, output):
            build(deployment, output)
        return output


@cache
def _alone() -> FileLock:
    """Tests run in several processes; re-entrant in one."""
    BUILD.mkdir(exist_ok=True)
    return FileLock(BUILD / "test-demo.lock")
