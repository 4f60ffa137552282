"""Every metric of the product: names, labels and meaning. docs/metrics.md is made from this list.

They appear on Triton's own /metrics endpoint. Names end in their unit, as Prometheus asks.

    python -m python_backends.metrics > docs/metrics.md
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Metric:
    """One family. `buckets` are upper bounds; only histograms have them."""

    name: str
    kind: str  # counter, gauge, histogram
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


def _histogram(name: str, text: str) -> Metric:
    return Metric(name, "histogram", ("modality",), text, _SECONDS)


REQUESTS = Metric("tvlm_requests_total", "counter", ("modality", "outcome"), "Requests that ended, by status.")
REFUSALS = Metric(
    "tvlm_refusals_total", "counter", ("reason",), "Requests refused, by the setting or field that the error names."
)
RETRIES = Metric("tvlm_retries_total", "counter", ("stage",), "Work done again after a worker died.")
RESTARTS = Metric("tvlm_worker_restarts_total", "counter", ("stage",), "Workers replaced after a death or hang.")
TTFT = _histogram("tvlm_time_to_first_token_seconds", "From the request's arrival to its first token.")
TPOT = _histogram("tvlm_time_per_output_token_seconds", "Mean time between the tokens of a request.")
LONGEST_GAP = _histogram("tvlm_longest_token_gap_seconds", "Longest time between two tokens of a request.")
QUEUE = _histogram("tvlm_queue_seconds", "Time to first token that was spent in no stage.")
DECODE = _histogram("tvlm_decode_seconds", "Media decode of the image that was ready last.")
ENCODE = _histogram("tvlm_encode_seconds", "Vision encode of the image that was ready last.")
PREFILL = _histogram("tvlm_prefill_seconds", "From the first step that could take a sequence to its first token.")
INPUT_TOKENS = Metric("tvlm_input_tokens_total", "counter", ("kind",), "Prompt tokens: text, visual.")
OUTPUT_TOKENS = Metric("tvlm_output_tokens_total", "counter", (), "Answer tokens.")
CACHE_QUERIES = Metric("tvlm_encoder_cache_queries_total", "counter", (), "Images looked up in the embedding pool.")
CACHE_HITS = Metric("tvlm_encoder_cache_hits_total", "counter", (), "Images found there, and so not encoded.")
PAGES = Metric(
    "tvlm_embedding_pages", "gauge", ("state",), "Pages of the embedding pool: held by requests, kept, free."
)
EVICTIONS = Metric("tvlm_embedding_evictions_total", "counter", (), "Images whose pages were given to others.")
WAITING = Metric("tvlm_waiting_requests", "gauge", ("modality",), "Admitted and not with a replica yet.")
PENDING_TOKENS = Metric("tvlm_pending_tokens", "gauge", ("modality",), "Prompt tokens of the waiting requests.")
RUNNING_REQUESTS = Metric("tvlm_running_requests", "gauge", ("modality",), "Handed to a replica and not ended.")
RUNNING = Metric("tvlm_running_sequences", "gauge", ("replica",), "Sequences with a replica.")
KV_USAGE = Metric("tvlm_kv_cache_usage_ratio", "gauge", ("replica",), "Share of the KV cache that sequences hold.")
PREFIX_QUERIES = Metric(
    "tvlm_prefix_cache_queries_total", "counter", ("replica",), "Prompt tokens submitted, text and visual."
)
PREFIX_HITS = Metric(
    "tvlm_prefix_cache_hits_total", "counter", ("replica",), "Of these, tokens whose KV was there already."
)
ENGINE_WAITING = Metric(
    "tvlm_engine_waiting_sequences", "gauge", ("replica",), "Sequences in TensorRT-LLM's own queue, when it last told."
)
ENGINE_STEP = Metric("tvlm_engine_step_seconds", "gauge", ("replica",), "TensorRT-LLM's last iteration, likewise.")
ENCODE_TOKENS = Metric("tvlm_encode_tokens", "gauge", (), "Visual tokens in encode now.")
PREFILL_TOKENS = Metric(
    "tvlm_prefill_tokens", "gauge", ("replica",), "Prompt tokens with a replica, not yet prefilled."
)
ENCODE_BUDGET = Metric("tvlm_encode_budget_tokens", "gauge", (), "The encode budget, as the controller has set it.")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class Registry(Protocol):
    """Where values go; the Triton one is in `triton_io`."""

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Counters add the value, gauges take it, histograms count it."""


class Metrics:
    """Records from the event loop without waiting: every value is a round trip to tritonserver."""

    _LIMIT = 10_000  # values that wait; more are dropped, and said so once

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._values: queue.Queue[tuple[Metric, float, Mapping[str, str]] | None] = queue.Queue(self._LIMIT)
        self._dropped = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def record(self, metric: Metric, value: float, **labels: str) -> None:
        """See `Registry`."""
        try:
            self._values.put_nowait((metric, value, labels))
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                log.warning("metrics fall behind; some values are dropped")

    def close(self) -> None:
        """Record what waits, then stop."""
        self._values.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        shown: dict[tuple[object, ...], float] = {}  # gauges; most of their values, ten a second, are the ones before
        while (item := self._values.get()) is not None:
            metric, value, labels = item
            series = (metric.name, *sorted(labels.items()))
            if shown.get(series) == value:
                continue
            try:
                self._registry.record(metric, value, labels)
            except Exception:
                log.exception("%s could not be recorded", metric.name)
            else:
                if metric.kind == "gauge":
                    shown[series] = value


def document() -> str:
    """docs/metrics.md."""
    rows = "\n".join(f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or '-'} | {m.help} |" for m in ALL)
    bounds = ", ".join(f"{bound:g}" for bound in _SECONDS)
    return (
        "# Metrics\n\n"
        "Made from `python_backends/metrics.py` (`python -m python_backends.metrics`). They appear on Triton's\n"
        "/metrics endpoint, beside Triton's own `nv_*` ones.\n\n"
        f"| name | kind | labels | meaning |\n|---|---|---|---|\n{rows}\n\n"
        f"Histograms have the bounds {bounds} (seconds). `modality` is text, image or video;\n"
        "`outcome` is ok or the status of the error. `reason` is the path of a setting (those in `limits` without\n"
        "it), a field of the request, or a status. OpenVINO does not say how much of a prompt it found in its cache:\n"
        "`tvlm_prefix_cache_hits_total` is the adapter's own account of it (`engines/prefix.py`).\n\n"
        "Worth an alert: `tvlm_refusals_total` and `tvlm_worker_restarts_total` rising, `tvlm_kv_cache_usage_ratio`\n"
        'near 1, and `tvlm_embedding_pages{state="free"}` at 0 while `held` is near the sum of all three.\n'
    )


if __name__ == "__main__":
    print(document(), end="")
