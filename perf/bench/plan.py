"""What is run at each level, and at which rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.baselines.arms import ARMS, MONOLITH, PRODUCT
from perf.load import Run
from perf.statistics import QUICK_TAIL, TAIL
from perf.workloads import Workload, make_workload

LOAD = 0.7  # of the monolith's capacity
BURST_LOAD = 0.5  # outside the burst, which is far over capacity
SATURATED = 16  # requests in flight in a saturation run
ISOLATED = ("single-text", "single-image")  # one at a time: SLOs are multiples of what the monolith then needs
SATURATION = ("single-text", "single-image")  # as many as it takes: capacity
SLO_FACTOR = 5


@dataclass(frozen=True)
class Level:
    """How much is measured."""

    name: str
    arms: tuple[str, ...]
    workloads: tuple[str, ...]
    seeds: tuple[int, ...]
    seconds: float  # of arrivals in each run
    isolated: int  # requests of each kind
    saturation: int
    tail: int  # requests beyond a quantile that is reported


LEVELS = {
    level.name: level
    for level in (
        Level("quick", (MONOLITH, PRODUCT), ("image-burst",), (1,), 24, 4, 16, QUICK_TAIL),
        Level("standard", tuple(ARMS), ("image-burst", "azure-lmm", "share-10"), (1,), 36, 6, 24, QUICK_TAIL),
        Level(
            "full",
            tuple(ARMS),
            ("image-burst", "azure-lmm", "share-10", "share-25", "mix-80-15-5", "servegen-mm"),
            (1, 2, 3),
            30,
            10,
            32,
            TAIL,
        ),
    )
}


@dataclass(frozen=True)
class Capacity:
    """Seconds of the whole machine that the monolith needs, from its saturation runs."""

    text_s: float  # a text request
    picture_s: float  # a picture, beside the request's text

    def rate(self, workload: str, load: float) -> float:
        """Requests a second of a workload that are `load` of the capacity; a burst's rate is that of its base."""
        requests = make_workload(workload, rate=10.0, seconds=200.0, seed=0).requests
        if workload == "image-burst":
            requests = requests[: len(requests) // 3]
        pictures = sum(len(request.pictures) for request in requests) / len(requests)
        return load / (self.text_s + self.picture_s * pictures)


def capacity(text: Run, image: Run) -> Capacity:
    """From saturation runs of single-text and single-image."""
    text_s = 1 / text.requests_per_s
    return Capacity(text_s, max(0.0, 1 / image.requests_per_s - text_s))


def arms_in_order(level: Level, index: int) -> Sequence[str]:
    """Another order for each seed (by its index), so that drift of the machine does not always hit the same arm.

    The first order begins with the first arm, the monolith, whose capacity sets all rates.
    """
    turn = (index + 1) // 2 % len(level.arms)
    arms = level.arms[turn:] + level.arms[:turn]
    return tuple(reversed(arms)) if index % 2 else arms


def fixed_count(name: str, count: int, seed: int) -> Workload:
    """`count` requests for runs whose arrivals do not matter."""
    workload = make_workload(name, rate=1.0, seconds=4.0 * count + 20, seed=seed)
    return Workload(name, 1.0, workload.seconds, seed, workload.notes, workload.requests[:count])
