"""What is run at each level, and at which rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf.baselines.arms import COMPARED, MONOLITH, PRODUCT
from perf.load import Run
from perf.statistics import QUICK_TAIL, TAIL
from perf.workloads import Workload, make_workload

LOAD = 0.7  # of the monolith's capacity
BURST_LOAD = 0.5  # outside the burst, which is far over capacity
SATURATED = 8  # requests in flight in a saturation run, a fraction of all: what runs out at its end is no saturation
KINDS = ("single-text", "single-image")  # of calibration: alone (for SLOs), and as many as it takes (for capacity)
SLO_FACTOR = 5


@dataclass(frozen=True)
class Level:
    """How much is measured."""

    name: str
    arms: tuple[str, ...]
    seconds: Mapping[str, float]  # of arrivals in each run, by workload
    seeds: tuple[int, ...]  # one run of each workload for each
    once: tuple[str, ...]  # arms that run with the first seed only
    isolated: int  # requests of each kind, one at a time
    saturation: Mapping[str, int]  # requests of each kind, SATURATED in flight
    repeats: int  # of the saturation runs, in monolith and product
    tail: int  # requests beyond a quantile that is reported

    @property
    def workloads(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.seconds)

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """The runs of an arm."""
        return self.seeds[:1] if arm in self.once else self.seeds


LEVELS = {
    level.name: level
    for level in (
        Level(
            "quick",
            (MONOLITH, PRODUCT),
            {"image-burst": 24},
            (1,),
            (),
            3,
            {"single-text": 24, "single-image": 12},
            1,
            QUICK_TAIL,
        ),
        Level(
            "standard",
            COMPARED,
            {"image-burst": 30, "azure-lmm": 30, "share-10": 20},
            (1,),
            (),
            4,
            {"single-text": 24, "single-image": 12},
            1,
            QUICK_TAIL,
        ),
        Level(
            "full",
            COMPARED,
            {"image-burst": 75, "azure-lmm": 60, "share-10": 45, "share-25": 40},
            (1, 2, 3),
            ("split-cores", "split-equal"),
            8,
            {"single-text": 48, "single-image": 24},
            3,
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


def offered(workload: Workload, monolith: Capacity) -> float:
    """The load that a workload came to, as a share of the capacity: draws differ from their means."""
    pictures = sum(len(request.pictures) for request in workload.requests)
    return (len(workload.requests) * monolith.text_s + pictures * monolith.picture_s) / workload.seconds


def capacity(text: Run, image: Run) -> Capacity:
    """From saturation runs of single-text and single-image."""
    text_s = 1 / text.requests_per_s
    return Capacity(text_s, max(0.0, 1 / image.requests_per_s - text_s))


def arms_in_order(level: Level, index: int) -> Sequence[str]:
    """The arms of the seed with this index, in another order each time: drift does not always hit the same arm.

    The first order begins with the monolith, whose capacity sets all rates.
    """
    arms = tuple(arm for arm in level.arms if level.seeds[index] in level.seeds_of(arm))
    turn = (index + 1) // 2 % len(arms)
    arms = arms[turn:] + arms[:turn]
    return tuple(reversed(arms)) if index % 2 else arms


def fixed_count(name: str, count: int, seed: int) -> Workload:
    """`count` requests for runs whose arrivals do not matter."""
    workload = make_workload(name, rate=1.0, seconds=4.0 * count + 20, seed=seed)
    return Workload(name, 1.0, workload.seconds, seed, workload.notes, workload.requests[:count])
