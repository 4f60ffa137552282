"""The demo deployment composed once, under build/, and kept between test sessions."""

from functools import cache
from pathlib import Path

from build_engines import build, is_stale

ROOT = Path(__file__).parents[1]
DEPLOYMENT = ROOT / "deployments" / "demo-cpu.yaml"


@cache
def composed_demo() -> Path:
    output = ROOT / "build" / "test-demo"
    if is_stale(DEPLOYMENT, output):
        build(DEPLOYMENT, output)
    return output
