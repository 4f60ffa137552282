"""From token ids to text: incremental detokenisation and stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextAssembler:
    """Turns one sequence's tokens into text pieces that can be sent as they are.

    No piece ends inside a character, and text that could be the beginning of a stop string is held back until it is
    clear that it is not.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False  # a stop string was met: nothing comes after it

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens make certain."""
        if self.stopped:
            return ""
        for token in tokens:
            self._held += self._stream.step(self._tokenizer, token) or ""
        cut = min((at for at in (self._held.find(stop) for stop in self._stop) if at >= 0), default=None)
        if cut is not None:
            self.stopped = True
            text, self._held = self._held[:cut], ""
            return text
        keep = _longest_possible_stop(self._held, self._stop)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def finish(self) -> str:
        """What was held back, at the end of the sequence."""
        text, self._held = self._held, ""
        return text


def _longest_possible_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins some stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
