"""What may be said from so many requests: quantiles with enough samples, and intervals from paired arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.99, 0.95, 0.90, 0.75, 0.50)
TAIL = 10  # requests that must lie beyond a quantile: 1,000 for P99, 200 for P95, 100 for P90, 40 for P75
QUICK_TAIL = 2  # for quick looks, whose figures are not quoted
MIN_BLOCKS = 5  # fewer say nothing of how runs differ: no interval then
_RESAMPLES = 1000

Values = NDArray[np.float64]


def highest_quantile(count: int, tail: int = TAIL) -> float:
    """The highest of QUANTILES that `count` samples can bear; the median needs nothing."""
    return next((q for q in QUANTILES if count * (1 - q) >= tail - 1e-9), QUANTILES[-1])


def quantile(values: Values, q: float) -> float:
    """The smallest value that at least the share `q` does not exceed; inf stands for requests without an answer."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else float("nan")


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % bootstrap interval, NaN where there is too little to say one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.2f} [no interval]"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Block:
    """Neighbouring requests of one run, the unit of resampling: neighbours wait for each other, blocks hardly.

    values: arm -> the values of its requests; the arms' arrivals are the same, so that they are resampled together.
    """

    values: Mapping[str, Values]


def make_blocks(
    values: Mapping[str, Sequence[float | Sequence[float]]], at_s: Sequence[float], block_s: float
) -> list[Block]:
    """Cut the requests of one seed (same order in every arm) into blocks of `block_s` seconds of arrivals.

    A request has one value, or several (its gaps between tokens).
    """
    index = (np.asarray(at_s) // block_s).astype(int)
    blocks = []
    for block in np.unique(index):
        chosen = np.flatnonzero(index == block)
        blocks.append(
            Block({arm: np.concatenate([np.atleast_1d(column[i]) for i in chosen]) for arm, column in values.items()})
        )
    return blocks


def paired_ratio(blocks: Sequence[Block], over: str, under: str, q: float | None, seed: int = 0) -> Interval:
    """Quantile `q` (None: the mean) of `over` by that of `under`, arms paired by block.

    The interval is from a block bootstrap (Künsch 1989) and needs MIN_BLOCKS blocks. Where queues outlast a block,
    neighbours depend on each other and it is too narrow. The ratio is inf when only the lower one is 0 or only the
    upper one infinite, and NaN when neither can be compared.
    """
    once = np.ones((1, len(blocks)), np.int32)
    value = float(_ratio(*(_statistic(blocks, arm, once, q) for arm in (over, under)))[0])
    if len(blocks) < MIN_BLOCKS:
        return Interval(value)
    picks = np.random.default_rng(seed).multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), _RESAMPLES)
    ratios = _ratio(*(_statistic(blocks, arm, picks.astype(np.int32), q) for arm in (over, under)))
    ratios = ratios[~np.isnan(ratios)]
    if not len(ratios):
        return Interval(value)
    low, high = np.quantile(ratios, (0.025, 0.975), method="inverted_cdf")
    return Interval(value, float(low), float(high))


def _statistic(blocks: Sequence[Block], arm: str, times: NDArray[np.int32], q: float | None) -> Values:
    """For each row of `times` [resamples, blocks], the statistic of every block taken so many times; NaN for none."""
    values = np.concatenate([block.values[arm] for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [len(block.values[arm]) for block in blocks])
    if not len(values):
        return np.full(len(times), np.nan)
    order = np.argsort(values)
    values, owner = values[order], owner[order]
    found = np.empty(len(times))
    for row, taken in enumerate(times):
        weights = taken[owner]
        below = np.cumsum(weights)
        if not below[-1]:
            found[row] = np.nan
        elif q is None:
            found[row] = np.dot(weights, values) / below[-1]
        else:
            found[row] = values[np.searchsorted(below, q * below[-1] - 1e-9)]
    return found


def _ratio(top: Values, bottom: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):  # x/0 is inf; 0/0 and inf/inf are NaN
        return top / bottom


def median_difference(over: Values, under: Values, seed: int = 0) -> Interval:
    """median(over) - median(under) of independent samples, with a bootstrap interval."""
    rng = np.random.default_rng(seed)
    picked = [np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1) for values in (over, under)]
    low, high = np.quantile(picked[0] - picked[1], (0.025, 0.975))
    return Interval(float(np.median(over) - np.median(under)), float(low), float(high))
