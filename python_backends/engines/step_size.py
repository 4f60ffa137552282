"""How many prompt tokens a step of the token loop takes while sequences decode: what their slack leaves.

A small step wastes time (the weights are unpacked in every one), a large one makes all others stutter, and what a step
can bear changes with what else the machine does: with pictures in encode a token takes twice as long (UnifiedServe:
budgets follow the slack of decode).
"""

from __future__ import annotations

_MOST_WAITED = 3  # steps in a row that prompts wait for slack
_KEEP = 0.95  # of what was known, at every step: some twenty steps count
_DOUBT = 64.0  # tokens squared: steps whose sizes differ by less don't tell a token's time from a step's


class StepSize:
    """From the times of past steps, by a line through them: so much a step, and so much a token in it. No I/O.

    A sequence that decodes adds one token to a step.
    """

    def __init__(self, least: int, most: int) -> None:
        """Prompt tokens of a step, within `least` and `most`."""
        self._least = least
        self._most = most
        self._steps = self._tokens = self._seconds = 0.0  # sums over past steps, the older the less
        self._tokens_squared = self._products = 0.0
        self._waited = 0  # steps, with prompts that wait

    def room(self, decoding: int, slack_s: float) -> int:
        """Prompt tokens of the next step; `decoding` sequences can wait `slack_s` for their tokens.

        They come in multiples of `least`. None where they don't fit in, but never for more than `_MOST_WAITED` steps.
        """
        if not decoding:
            return self._most  # nobody stutters
        room = self._fitting(decoding, slack_s) if self._steps else self._least
        if not room and self._waited == _MOST_WAITED:
            room = self._least
        self._waited = 0 if room else self._waited + 1
        return room

    def _fitting(self, decoding: int, slack_s: float) -> int:
        tokens = min((slack_s - self.decode_s(decoding)) / self._line()[1], self._most)
        return max(0, int(tokens / self._least)) * self._least

    def decode_s(self, decoding: int) -> float:
        """What a step without prompt tokens takes; 0 while nothing is known."""
        if not self._steps:
            return 0.0
        step_s, token_s = self._line()
        return step_s + decoding * token_s

    def took(self, prompt_tokens: int, decoding: int, seconds: float) -> None:
        """A step with so many of each took so long."""
        tokens = prompt_tokens + decoding
        self._steps = _KEEP * self._steps + 1
        self._tokens = _KEEP * self._tokens + tokens
        self._seconds = _KEEP * self._seconds + seconds
        self._tokens_squared = _KEEP * self._tokens_squared + tokens**2
        self._products = _KEEP * self._products + tokens * seconds

    def _line(self) -> tuple[float, float]:
        """Seconds of a step, and of a token: least squares, pulled to no time of its own where steps are alike."""
        tokens, seconds = self._tokens / self._steps, self._seconds / self._steps
        variance = self._tokens_squared / self._steps - tokens**2
        covariance = self._products / self._steps - tokens * seconds
        whole_s = seconds / max(tokens, 1.0)  # of a token, if a step takes no time of its own
        token_s = (covariance + _DOUBT * whole_s) / (variance + _DOUBT)
        token_s = min(max(token_s, 1e-6), max(whole_s, 1e-6))
        return max(0.0, seconds - token_s * tokens), token_s
