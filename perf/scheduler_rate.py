"""How many requests a second the scheduler itself can take, in virtual time.

    python -m perf.scheduler_rate [--requests 1000000] [--policy slo]

Three in ten requests carry one to four pictures; four encoders and four replicas.
"""

from __future__ import annotations

import argparse
import time

from perf.plant import Plant, arrivals, settings
from python_backends.scheduling.order import POLICIES
from python_backends.scheduling.scheduler import Scheduler


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--policy", choices=POLICIES, default="slo")
    options = parser.parse_args()
    plant = Plant(Scheduler(settings(policy=options.policy, encoders=4, replicas=4)), actions=None)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    plant.run(arrivals(options.requests, rate=100, image_share=0.3))
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    assert len(plant.ended) == options.requests
    rate = options.requests / seconds
    print(f"{options.requests:,} requests in {seconds:.1f} s ({cpu_s:.1f} s of CPU): {rate:,.0f} a second")


if __name__ == "__main__":
    main()
