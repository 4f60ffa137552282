"""Who is encoded and submitted next in a monolith. Pure.

`fcfs` is what general engines do: in order of arrival, as many pictures before a step as a budget of visual tokens
allows (vLLM's default is 2048 a step). `text_first` is the strongest order without a second process, after
RPS-Serve (arXiv 2603.26498): small before large with aging, and one picture at a time while text runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PICTURES_A_STEP = 10  # 2048 visual tokens at 196 a picture
AGING = 0.8  # pictures that a waiting second outweighs: four pictures are level with new text after 5 s


@dataclass(frozen=True)
class Waiting:
    """A request that is not in the engine yet."""

    number: int
    arrived_s: float
    pictures_left: int


@dataclass(frozen=True)
class Plan:
    """What to do before the next step: these requests go on with so many pictures each, in order."""

    encode: tuple[tuple[int, int], ...]  # (request number, pictures to encode now); 0 for text


def plan(waiting: Sequence[Waiting], now_s: float, policy: str, busy: bool) -> Plan:
    """`busy`: sequences are running, whose tokens wait while pictures are encoded."""
    if policy == "fcfs":
        ordered, budget = sorted(waiting, key=lambda w: w.arrived_s), PICTURES_A_STEP
    else:
        ordered = sorted(waiting, key=lambda w: w.pictures_left - AGING * (now_s - w.arrived_s))
        budget = 1 if busy else PICTURES_A_STEP
    chosen: list[tuple[int, int]] = []
    for request in ordered:
        take = min(request.pictures_left, budget)
        if request.pictures_left and not take:
            if policy == "fcfs":
                break  # nobody overtakes
            continue
        chosen.append((request.number, take))
        budget -= take
    return Plan(tuple(chosen))
