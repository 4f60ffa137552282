"""The gateway's own metrics, on its /metrics; those of the stages are on Triton's. Names end in their unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics:
    """One registry for each gateway; labels have few values, none of which a client chooses."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tvlm_gateway_requests", "Requests that ended, by status.", ("route", "status"), registry=self._registry
        )
        self._duration = Histogram(
            "tvlm_gateway_request_seconds",
            "From the request's headers to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first = Histogram(
            "tvlm_gateway_first_piece_seconds",
            "From the request's headers to the first piece of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )

    def ended(self, route: str, status: int, total_s: float, first_piece_s: float | None) -> None:
        """A request is over."""
        self._requests.labels(route, str(status)).inc()
        self._duration.labels(route).observe(total_s)
        if first_piece_s is not None:
            self._first.labels(route).observe(first_piece_s)

    def watch(self, collect: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        """Add gauges that are read when somebody asks."""
        self._registry.register(_Gauges(collect))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)


class _Gauges:
    def __init__(self, collect: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        yield from self._collect()
