"""How much runs at a time: token budgets, and the controller that trades encode against decode."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Budget:
    """Tokens in flight on one endpoint; one that is larger than the limit goes alone."""

    limit: int
    used: int = 0
    _held: dict[tuple[int, int], int] = field(default_factory=dict)

    def fits(self, tokens: int) -> bool:
        """Whether so many more may start now."""
        return self.used == 0 or self.used + tokens <= self.limit

    def hold(self, key: tuple[int, int], tokens: int) -> None:
        """Count them until `release` of the same key."""
        self._held[key] = tokens
        self.used += tokens

    def release(self, key: tuple[int, int]) -> bool:
        """Give back what was held under the key; whether there was anything."""
        tokens = self._held.pop(key, None)
        self.used -= tokens or 0
        return tokens is not None


class MeasuredRate:
    """Tokens a second of a stage as seen by requests, smoothed; unknown until the first one.

    Tokens weigh the same whoever brings them: what a short request costs beside its tokens is not their price.
    """

    _KEEP = 0.9  # of what was measured, at every request

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A request's `tokens` took so long."""
        self._tokens = self._KEEP * self._tokens + max(1, tokens)
        self._seconds = self._KEEP * self._seconds + seconds

    def seconds(self, tokens: float) -> float:
        """How long so many should take; 0 while nothing is known."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0


class EncodeController:
    """Tightens the encode budget when gaps between tokens are too long, relaxes it when they are short.

    Encode and decode share the machine (UnifiedServe: budgets adjusted from decode's slack). Multiplicative decrease,
    additive increase; the floor is one item, so pictures always move.
    """

    _WINDOW = 64  # gaps that a decision looks at
    _TIGHTEN, _RELAX = 0.7, 0.125
    _SLACK = 0.8  # relax below this share of the longest gap

    def __init__(self, most: int, least: int, longest_gap_s: float) -> None:
        self.limit = most
        self._most = most
        self._least = min(least, most)
        self._longest_s = longest_gap_s
        self._gaps: deque[float] = deque(maxlen=self._WINDOW)

    def gap(self, seconds: float) -> None:
        """The time between two tokens of some sequence."""
        self._gaps.append(seconds)

    def tick(self) -> int:
        """Decide anew from the gaps since the last tick; gives the budget in visual tokens."""
        if not self._gaps:
            self.limit = self._most  # nobody decodes, nobody is disturbed
            return self.limit
        tail = sorted(self._gaps)[int(0.95 * (len(self._gaps) - 1))]
        self._gaps.clear()
        if tail > self._longest_s:
            self.limit = max(self._least, int(self.limit * self._TIGHTEN))
        elif tail < self._SLACK * self._longest_s:
            self.limit = min(self._most, self.limit + max(1, int(self._most * self._RELAX)))
        return self.limit
