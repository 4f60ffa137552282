"""Text at a steady rate, and one burst of pictures in its midst; what each request then saw."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from perf.mix import picture

TEXT_RATE = 1.5  # requests a second
TOKENS = 32  # of every answer
BURST_REQUESTS, BURST_PICTURES = 16, 4  # 64 pictures
LEAD_S = 4.0  # text alone before the burst


@dataclass(frozen=True)
class Request:
    """Sent at `at_s`, whatever happens to others."""

    at_s: float
    text: str
    images: tuple[bytes, ...] = ()


@dataclass
class Seen:
    """What came of a request; times in seconds from its `at_s`."""

    image: bool
    ttft_s: float = float("nan")
    total_s: float = float("nan")
    gaps_s: list[float] = field(default_factory=list)
    error: str | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def requests(seconds: float, burst: bool, seed: int = 7) -> list[Request]:
    """Poisson text for so long, and the burst at `LEAD_S`.

    The text is of the same lengths with and without it, and differs from the first word on: no prefix cache helps.
    """
    rng = random.Random(seed)
    made: list[Request] = []
    now = 0.0
    while (now := now + rng.expovariate(TEXT_RATE)) < seconds:
        begin = "Write" if burst else "Make"
        made.append(Request(now, f"{begin} a few sentences about the number {len(made)}, its history and its use."))
    if burst:
        made += [
            Request(
                LEAD_S,
                "What is in these pictures?",
                tuple(picture(rng, BURST_PICTURES * number + part) for part in range(BURST_PICTURES)),
            )
            for number in range(BURST_REQUESTS)
        ]
    return sorted(made, key=lambda request: request.at_s)


@dataclass(frozen=True)
class Summary:
    """The figures of a run, in milliseconds; NaN where there is nothing to measure."""

    text_ttft_p50: float
    text_ttft_p99: float
    longest_gap: float  # between two tokens of a text request
    gap_p99: float
    image_p50: float  # to the end of the answer
    image_p99: float
    text_requests: int  # that came before the last picture was answered
    errors: int

    def __str__(self) -> str:
        return (
            f"text TTFT P50 {self.text_ttft_p50:6.0f} P99 {self.text_ttft_p99:6.0f} ms of {self.text_requests}, "
            f"gaps P99 {self.gap_p99:5.0f} longest {self.longest_gap:5.0f} ms; "
            f"pictures P50 {self.image_p50:6.0f} P99 {self.image_p99:6.0f} ms; {self.errors} errors"
        )


def summary(sent: Sequence[Request], seen: Sequence[Seen]) -> Summary:
    """Text is judged from the burst until its last answer; without a burst from the same second on."""
    pairs = [(request, result) for request, result in zip(sent, seen, strict=True) if result.error is None]
    images = [result.total_s for _, result in pairs if result.image]
    end_s = LEAD_S + max(images) if images else float("inf")
    texts = [result for request, result in pairs if not result.image and LEAD_S <= request.at_s <= end_s]
    gaps = [gap for result in texts for gap in result.gaps_s]
    return Summary(
        _ms([t.ttft_s for t in texts], 50), _ms([t.ttft_s for t in texts], 99), _ms(gaps, 100), _ms(gaps, 99),
        _ms(images, 50), _ms(images, 99), len(texts), len(sent) - len(pairs),
    )  # fmt: skip


def _ms(seconds: Sequence[float], percentile: float) -> float:
    return float(np.percentile(seconds, percentile)) * 1e3 if seconds else float("nan")
