"""Write a workload file.

python -m perf.workloads image-burst --rate 2 --seconds 60 --seed 1 --output burst.jsonl
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from perf import command
from perf.workloads import SHAPES, make_workload


def main() -> None:
    """Make, save, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    workload = make_workload(options.name, rate=options.rate, seconds=options.seconds, seed=options.seed)
    workload.save(options.output)
    kinds = Counter(request.modality for request in workload.requests)
    pictures = sum(len(request.pictures) for request in workload.requests)
    print(f"{options.output}: {len(workload.requests)} requests ({dict(kinds)}), {pictures} pictures; {workload.notes}")


if __name__ == "__main__":
    command.run(main)
