"""Where a report's figures come from."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The machine and the code."""

    cpu: str
    cores: int
    date: str  # UTC
    commit: str
    load: str  # load average over 1 minute; far over the cores means that others were at work too
    steal: str  # share of CPU time that the hypervisor gave to others


def describe() -> Machine:
    """This machine, now."""
    return Machine(
        _cpu(),
        len(os.sched_getaffinity(0)),
        datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        _commit(),
        f"{os.getloadavg()[0]:.1f}",
        _steal(),
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _steal() -> str:
    ticks = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return f"{ticks[7] / sum(ticks):.1%}"
