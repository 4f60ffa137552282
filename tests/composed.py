"""The demo deployment composed once, under build/, and kept between test sessions."""

import shutil
from functools import cache
from pathlib import Path

import yaml

from build_engines import build, is_stale

ROOT = Path(__file__).parents[1]
DEPLOYMENT = ROOT / "deployments" / "demo-cpu.yaml"
BUILD = ROOT / "build"


@cache
def composed_demo(replicas: int = 1) -> Path:
    """Its output folder; with another number of replicas it is the same deployment else, and takes over the weights."""
    deployment, output = DEPLOYMENT, BUILD / "test-demo"
    if replicas != 1:
        output = BUILD / f"test-demo-{replicas}"
        deployment = BUILD / f"test-demo-{replicas}.yaml"
        if not output.exists():
            shutil.copytree(composed_demo(), output, ignore=shutil.ignore_patterns("*.log"))
        values = yaml.safe_load(DEPLOYMENT.read_text())
        values["checkpoint"] = str(DEPLOYMENT.parent / values["checkpoint"])
        values["pools"]["text"]["replicas"] = replicas
        deployment.write_text(yaml.safe_dump(values))
    if is_stale(deployment, output):
        build(deployment, output)
    return output
