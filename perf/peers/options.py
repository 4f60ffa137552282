"""What every peer is told on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def peer_parser(description: str | None) -> argparse.ArgumentParser:
    """Which checkpoint to serve, and where."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--checkpoint", type=Path, required=True)
    made.add_argument("--port", type=int, required=True)
    return made
