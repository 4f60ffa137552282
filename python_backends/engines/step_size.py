"""How many prompt tokens a step of the token loop takes while sequences decode: what the SLO of their tokens leaves.

A small step wastes time (the weights are unpacked in every one), a large one makes all others stutter, and what a step
can bear changes with what else the machine does: with pictures in encode a token takes twice as long (UnifiedServe:
budgets follow the slack of decode).
"""

from __future__ import annotations

_KEEP = 0.7  # of what was known, at every step


class StepSize:
    """From the times of past steps; pure."""

    def __init__(self, least: int, most: int, slo_s: float) -> None:
        """Prompt tokens of a step, within `least` and `most`; the time between tokens shall be `slo_s`."""
        self._least = least
        self._most = most
        self._slo_s = slo_s
        self._decode_s: float | None = None  # a step without prompt tokens
        self._token_s: float | None = None  # what a prompt token adds

    def room(self, decoding: bool) -> int:
        """Prompt tokens of the next step; `decoding`: sequences wait for its tokens."""
        if not decoding:
            return self._most  # nobody stutters
        if self._token_s is None:
            return self._least
        left_s = self._slo_s - (self._decode_s or 0.0)
        return int(max(self._least, min(self._most, left_s / self._token_s)))

    def took(self, prompt_tokens: int, seconds: float) -> None:
        """A step with so many prompt tokens took so long."""
        if prompt_tokens:
            added_s = max(seconds - (self._decode_s or 0.0), 1e-6)
            self._token_s = _smoothed(self._token_s, added_s / prompt_tokens)
        else:
            self._decode_s = _smoothed(self._decode_s, seconds)


def _smoothed(known: float | None, new: float) -> float:
    return new if known is None else _KEEP * known + (1 - _KEEP) * new
