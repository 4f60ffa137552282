"""Arrival processes: seconds from the begin, in order. All draw from the generator that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def poisson(rng: np.random.Generator, rate: float, seconds: float) -> list[float]:
    """Independent arrivals at `rate` a second."""
    return modulated(rng, [rate], seconds)


def modulated(rng: np.random.Generator, rates: Sequence[float], seconds: float) -> list[float]:
    """Doubly stochastic: Poisson with another rate in each of len(rates) equal stretches."""
    width = seconds / len(rates)
    times: list[float] = []
    for index, rate in enumerate(rates):
        times += (index * width + rng.uniform(0.0, width, rng.poisson(rate * width))).tolist()
    return sorted(times)


def renewal(draw_gap: Callable[[], float], seconds: float) -> list[float]:
    """Independent gaps of any distribution, seconds."""
    times: list[float] = []
    now = draw_gap()
    while now < seconds:
        times.append(now)
        now += max(draw_gap(), 1e-6)  # a gap of zero for ever would never end
    return times
