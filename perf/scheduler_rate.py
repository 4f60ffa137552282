"""How many requests a second the scheduler itself can take, in virtual time.

    python -m perf.scheduler_rate [--requests 1000000] [--policy slo]

Three in ten requests carry one to four pictures; four encoders and four replicas.
"""

from __future__ import annotations

import argparse
import time

from perf.plant import Plant, arrivals, settings
from python_backends.scheduling.jobs import Action
from python_backends.scheduling.order import POLICIES
from python_backends.scheduling.scheduler import Scheduler


class Quiet(Plant):
    """A plant that keeps no record of a million requests' actions."""

    def _do(self, actions: list[Action], now: float) -> None:
        super()._do(actions, now)
        self.actions.clear()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--policy", choices=POLICIES, default="slo")
    options = parser.parse_args()
    plant = Quiet(Scheduler(settings(policy=options.policy, encoders=4, replicas=4)))
    begin = time.perf_counter()
    plant.run(arrivals(options.requests, rate=100, image_share=0.3))
    seconds = time.perf_counter() - begin
    assert len(plant.ended) == options.requests
    print(f"{options.requests:,} requests in {seconds:.1f} s: {options.requests / seconds:,.0f} a second")


if __name__ == "__main__":
    main()
