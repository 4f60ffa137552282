"""Draws of token counts and picture counts, and the one scale that fits a trace to a small machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"

# The traces' lengths belong to models of 7 B parameters and more on GPUs; an eighth keeps a CPU's prefill and decode in
# proportion to its vision encode, and the longest prompts within the demo LLM's context.
TOKEN_SCALE = 1 / 8
LONGEST_PROMPT = 1024  # tokens, after scaling
LONGEST_ANSWER = 128
MOST_PICTURES = 16  # in a request; ModServe clips the Azure trace here


@cache
def trace(name: str) -> dict[str, Any]:
    """A file of condensed trace data."""
    values: dict[str, Any] = json.loads((DATA / name).read_text())
    return values


def from_quantiles(rng: np.random.Generator, quantiles: Mapping[str, float]) -> float:
    """Inverse of a distribution given as percent -> value, straight between them on a log scale."""
    percents = np.array([float(percent) for percent in quantiles])
    return float(np.exp(np.interp(rng.uniform(0, 100), percents, np.log(np.array(list(quantiles.values()))))))


def from_counts(rng: np.random.Generator, weights: Mapping[str, float]) -> int:
    """One of the keys, by weight, clipped to MOST_PICTURES."""
    values = np.array([int(value) for value in weights])
    shares = np.array(list(weights.values()))
    return min(MOST_PICTURES, int(rng.choice(values, p=shares / shares.sum())))


def one_of(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    """One of equally likely values."""
    return values[int(rng.integers(len(values)))]


def prompt_tokens(traced: float) -> int:
    """Prompt tokens of a trace, scaled and bounded."""
    return int(np.clip(traced * TOKEN_SCALE, 4, LONGEST_PROMPT))


def answer_tokens(traced: float) -> int:
    """Answer tokens of a trace, scaled and bounded."""
    return int(np.clip(traced * TOKEN_SCALE, 2, LONGEST_ANSWER))
