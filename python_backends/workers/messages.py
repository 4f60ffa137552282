"""What stub and worker say to each other over their socket pair. Small: bulk data lies in slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from python_backends.workers.slots import ArrayRef


@dataclass(frozen=True)
class Start:
    """First message to a worker: what to load. `target` is "module:Class"."""

    name: str
    target: str
    config: dict[str, Any]
    slots: int
    slot_bytes: int
    heartbeat_s: float
    nice: int = 0


@dataclass(frozen=True)
class Ready:
    """The target is loaded and warm."""


@dataclass(frozen=True)
class Failed:
    """The target could not be loaded; the process ends."""

    reason: str


@dataclass(frozen=True)
class Call:
    """Run `op` on the arrays of a slot."""

    call_id: int
    slot: int
    op: str
    arrays: list[ArrayRef]
    meta: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """Answer to a Call: arrays in its slot, or an error sentence."""

    call_id: int
    arrays: list[ArrayRef]
    meta: dict[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class Event:
    """Something an engine reports on its own, such as the tokens of one step."""

    payload: Any


@dataclass(frozen=True)
class Heartbeat:
    """The process is alive; `busy_since` is when its oldest work began (CLOCK_MONOTONIC seconds), None when idle."""

    busy_since: float | None
