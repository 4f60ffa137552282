"""What a client gets: text pieces, and the figures of the request, time by stage among them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from python_backends.engines.protocol import Finish
from python_backends.errors import ServingError
from python_backends.router.channel import Tokens
from python_backends.router.encoder import Visual
from python_backends.router.outbox import Outbox
from python_backends.router.prompt import Prompt
from python_backends.router.request import VlmRequest
from python_backends.router.text import TextAssembler


@dataclass
class Timing:
    """Where the time of one request went, in ms, measured in the stages themselves.

    `decode_ms` and `encode_ms` are those of the image that was ready last; `queue_ms` is what remains of
    `first_token_ms` beside them and `prefill_ms`: waiting, and hops between the stages.
    """

    queue_ms: float = 0.0
    decode_ms: float | None = None  # None: no image
    encode_ms: float | None = None
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0

    def rounded(self) -> dict[str, float | None]:
        """For JSON, to the microsecond."""
        return {name: None if ms is None else round(ms, 3) for name, ms in vars(self).items()}


@dataclass(frozen=True)
class Piece:
    """One answer to a client; the last one brings the figures that were asked for."""

    text: str
    finish_reason: str | None = None
    num_input_tokens: int | None = None
    num_visual_tokens: int | None = None  # among the input tokens
    num_output_tokens: int | None = None
    timing: Timing | None = None


class Client(Protocol):
    """The client's end of one request."""

    request_id: str  # the client's own name for it, "" without; clients may well use the same

    def send(self, piece: Piece, last: bool) -> None:
        """Answer."""

    def fail(self, error: ServingError) -> None:
        """Answer with an error; nothing comes after it."""

    def is_cancelled(self) -> bool:
        """Whether the client went away."""


class Answer:
    """What has been answered so far to one request."""

    def __init__(
        self,
        request: VlmRequest,
        prompt: Prompt,
        assembler: TextAssembler,
        client: Client,
        outbox: Outbox,
        *,
        begin: float,
    ) -> None:
        self.timing = Timing()
        self.tokens: list[int] = []
        self.ended = False
        self.longest_gap_s = 0.0
        self._last_token_s = 0.0
        self._text_tokens = prompt.text_tokens
        self._visual_tokens = 0
        self._request = request
        self._assembler = assembler
        self._client = client
        self._outbox = outbox
        self._begin = begin
        self._text = prompt.text if request.echo_input else ""

    @property
    def time_per_token_s(self) -> float:
        """Mean time between the tokens so far; there must be two."""
        first_s = self._begin + self.timing.first_token_ms / 1e3
        return (self._last_token_s - first_s) / (len(self.tokens) - 1)

    def encoded(self, visuals: Sequence[Visual]) -> None:
        """The visual tokens are there."""
        self._visual_tokens = sum(visual.tokens for visual in visuals)
        if visuals:
            last = max(visuals, key=lambda visual: visual.ready_s)
            self.timing.decode_ms, self.timing.encode_ms = last.decode_ms, last.encode_ms

    def add(self, news: Tokens) -> None:
        """Tokens have come; sends what they make certain, and the end when it is one."""
        if news.tokens:
            self._note_time(news.prefill_ms)
        self.tokens += news.tokens
        self._text += self._assembler.feed(news.tokens)
        if self._assembler.stopped:
            self._finish(Finish.STOP)
        elif news.finish is not Finish.RUNNING:
            self._text += self._assembler.finish()
            self._finish(news.finish)
        elif self._request.stream and self._text:
            self._outbox.add(self)

    def flush(self) -> None:
        """Send the text that is there; the last piece has taken it along when the answer has ended meanwhile."""
        if self._text and not self.ended:
            text, self._text = self._text, ""
            self._client.send(Piece(text), last=False)

    def _note_time(self, prefill_ms: float) -> None:
        now = time.monotonic()
        if self.tokens:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_token_s)
        else:
            self._note_first_token(prefill_ms)
        self._last_token_s = now

    def _note_first_token(self, prefill_ms: float) -> None:
        t = self.timing
        t.prefill_ms = prefill_ms
        t.first_token_ms = (time.monotonic() - self._begin) * 1e3
        stages_ms = (t.decode_ms or 0.0) + (t.encode_ms or 0.0) + prefill_ms
        t.queue_ms = max(0.0, t.first_token_ms - stages_ms)

    def _finish(self, reason: Finish) -> None:
        """The last text, with the figures."""
        self.ended = True
        self.timing.total_ms = (time.monotonic() - self._begin) * 1e3
        wanted = self._request.wanted
        piece = Piece(
            self._text,
            reason.name.lower() if wanted.finish_reason else None,
            self._text_tokens + self._visual_tokens if wanted.num_input_tokens else None,
            self._visual_tokens if wanted.num_visual_tokens else None,
            len(self.tokens) if wanted.num_output_tokens else None,
            self.timing if wanted.timing else None,
        )
        self._client.send(piece, last=True)
