"""What may be said from so many requests: quantiles with enough samples, and intervals from paired arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.99, 0.95, 0.90, 0.50)
TAIL = 10  # requests that must lie beyond a quantile: 1,000 for P99, 200 for P95, 100 for P90
QUICK_TAIL = 2  # for quick looks, whose figures are not quoted
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
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Block:
    """Neighbouring requests of one run, the unit of resampling: neighbours wait for each other, blocks hardly.

    values: arm -> one value a request; the arms' arrivals are the same, so that they are resampled together.
    """

    values: Mapping[str, Values]


def make_blocks(values: Mapping[str, Sequence[float]], at_s: Sequence[float], block_s: float) -> list[Block]:
    """Cut the requests of one seed (same order in every arm) into blocks of `block_s` seconds of arrivals."""
    index = (np.asarray(at_s) // block_s).astype(int)
    arrays = {arm: np.asarray(column, float) for arm, column in values.items()}
    return [Block({arm: array[index == block] for arm, array in arrays.items()}) for block in np.unique(index)]


def paired_ratio(
    blocks: Sequence[Block], over: str, under: str, statistic: Callable[[Values], float], seed: int = 0
) -> Interval:
    """statistic(over) / statistic(under) with a block-bootstrap interval (Künsch 1989), arms paired by block."""
    rng = np.random.default_rng(seed)
    whole = _ratio(blocks, over, under, statistic)
    picks = rng.integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    ratios = np.array([_ratio([blocks[i] for i in pick], over, under, statistic) for pick in picks])
    ratios = ratios[~np.isnan(ratios)]
    low, high = np.quantile(ratios, (0.025, 0.975), method="inverted_cdf") if len(ratios) else (np.nan, np.nan)
    return Interval(whole, float(low), float(high))


def _ratio(blocks: Sequence[Block], over: str, under: str, statistic: Callable[[Values], float]) -> float:
    top, bottom = (statistic(np.concatenate([block.values[arm] for block in blocks])) for arm in (over, under))
    if bottom == 0 or np.isnan(top) or np.isnan(bottom) or (np.isinf(top) and np.isinf(bottom)):
        return float("nan")
    return top / bottom
