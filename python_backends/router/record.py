"""What stays of a request: one line in the log, and its share of the metrics."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from python_backends import metrics
from python_backends.errors import ServingError, Status
from python_backends.metrics import Metrics
from python_backends.router.answer import Answer
from python_backends.router.refusals import refusal_reason

log = logging.getLogger(__name__)


@dataclass
class RequestRecord:
    """Filled in as the request goes on."""

    request_id: str = ""  # the client's, cut off
    modality: str = "unknown"  # until it is parsed
    images: int = 0
    text_tokens: int = 0
    visual_tokens: int = 0
    outcome: str = "ok"
    error: str | None = None
    refusal: str | None = None  # the reason, when it was not taken on
    answer: Answer | None = None
    admitted: bool = False

    def fail(self, error: ServingError) -> None:
        """The request ends with this error; it is a refusal when it was not admitted, or can't ever be answered."""
        self.outcome, self.error = error.status.value, error.message
        if error.status is Status.INVALID_ARG or (error.status is Status.UNAVAILABLE and not self.admitted):
            self.refusal = refusal_reason(error)

    def write(self, total_ms: float) -> None:
        """One JSON line; no content of the request is in it."""
        values: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "answer"}
        if self.answer is not None:
            values |= {"output_tokens": len(self.answer.tokens), **self.answer.timing.rounded()}
        log.info("%s", json.dumps(values | {"total_ms": round(total_ms, 1)}))

    def count(self, to: Metrics) -> None:
        """Add this request to the metrics."""
        to.record(metrics.REQUESTS, 1, modality=self.modality, outcome=self.outcome)
        if self.refusal is not None:
            to.record(metrics.REFUSALS, 1, reason=self.refusal)
        answer = self.answer
        if answer is None or not answer.tokens:
            return
        to.record(metrics.INPUT_TOKENS, self.text_tokens, kind="text")
        to.record(metrics.INPUT_TOKENS, self.visual_tokens, kind="visual")
        to.record(metrics.OUTPUT_TOKENS, len(answer.tokens))
        timing = answer.timing
        stages = {
            metrics.TTFT: timing.first_token_ms,
            metrics.QUEUE: timing.queue_ms,
            metrics.DECODE: timing.decode_ms,
            metrics.ENCODE: timing.encode_ms,
            metrics.PREFILL: timing.prefill_ms,
        }
        for metric, ms in stages.items():
            if ms is not None:
                to.record(metric, ms / 1e3, modality=self.modality)
        if len(answer.tokens) > 1:
            to.record(metrics.TPOT, answer.time_per_token_s, modality=self.modality)
            to.record(metrics.LONGEST_GAP, answer.longest_gap_s, modality=self.modality)
