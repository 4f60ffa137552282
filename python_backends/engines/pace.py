"""When running answers are due for their next token: the slack that prefill and encode may take from decode.

An answer keeps its pace on the mean of its tokens so far, as a reader sees it (Andes, Liu et al. 2024: the pace
of delivery). One that is ahead can wait for a step with prompt tokens in it; one that is behind is caught up by steps
without. UnifiedServe makes its budgets follow this slack.

The pace is the SLO of the time between tokens, but for two kinds of answers. One whose first token was late has lost
its promise, and leaves its time to those that can still be kept. And where decode alone takes more than half of the
SLO, as many answers run, the pace is twice what decode takes, or steps would carry little else than decode.
"""

from __future__ import annotations

_LATE = 4.0  # times the SLO: the pace of an answer that began late
_LEAST_STEPS = 2.0  # without prompts, that the pace leaves time for
MOST_AHEAD = 3.0  # times the SLO that an answer is ahead, unless its pace is slower: what one gap may come to
_MOST_BEHIND = 3.0  # and behind: what held it up for long, such as preemption, is not caught up at the others' cost


class Pace:
    """Of the running answers of one engine. Times are seconds on any clock; no I/O."""

    def __init__(self, slo_s: float) -> None:
        """`slo_s`: the time between two tokens, on the mean of an answer."""
        self._slo_s = slo_s
        self._due_s: dict[int, float] = {}

    def got_tokens(self, request_id: int, count: int, now: float, *, late: bool, decode_s: float) -> None:
        """An answer got so many, its first ones or more.

        `late`: its first one was; `decode_s`: what a step without prompts takes now.
        """
        pace_s = max(self._slo_s * (_LATE if late else 1.0), _LEAST_STEPS * decode_s)
        earliest_s, latest_s = now - _MOST_BEHIND * self._slo_s, now + max(MOST_AHEAD * self._slo_s, pace_s)
        due_s = self._due_s.get(request_id, now) + count * pace_s
        self._due_s[request_id] = min(max(due_s, earliest_s), latest_s)

    def ended(self, request_id: int) -> None:
        """It is due for nothing any more."""
        self._due_s.pop(request_id, None)

    def slack_s(self, now: float) -> float:
        """How long the next token of every running answer can wait; below 0: one is late. inf: nobody waits."""
        return min(self._due_s.values(), default=float("inf")) - now

    def spare_s(self, now: float, decode_s: float) -> float:
        """What the next step leaves of the slack when it only decodes; one token's time at the most."""
        return max(0.0, min(self.slack_s(now) - decode_s, self._slo_s))
