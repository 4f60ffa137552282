"""One reading of a server's counters: Triton's statistics over HTTP, and its /metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from client.types import VlmError

_TIMEOUT_S = 5.0
_METRICS_PORT = 8002


@dataclass(frozen=True)
class ModelCounts:
    """A model's own counters since it was loaded; times are sums in ms over `inferences`."""

    name: str
    ready: bool
    inferences: int
    executions: int
    failures: int
    queue_ms: float
    compute_ms: float


@dataclass(frozen=True)
class Sample:
    """Everything that was read at `at_s` (monotonic seconds). `metrics_problem` says why there are no `values`."""

    at_s: float
    version: str
    ready: bool
    models: tuple[ModelCounts, ...]
    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)
    metrics_problem: str | None = None

    def by(self, name: str, label: str) -> dict[str, float]:
        """A metric's values by one of its labels, summed over the others."""
        sums: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def total(self, name: str, **wanted: str) -> float | None:
        """A metric's sum over the label values that are asked for; None where it does not exist."""
        found = [value for labels, value in self.values.get(name, {}).items() if wanted.items() <= dict(labels).items()]
        return sum(found) if found else None


class Reader:
    """Reads one server: `url` is Triton's HTTP address, `metrics_url` defaults to port 8002 of the same host."""

    def __init__(self, url: str, metrics_url: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise VlmError("INVALID_ARGUMENT", f"url: expected http://host:port of Triton's HTTP front end, got {url}")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.url = url.rstrip("/")
        self.metrics_url = metrics_url or f"http://{host}:{_METRICS_PORT}/metrics"
        # Triton waits for idle connections before it exits: keep none.
        self._pool = urllib3.PoolManager(retries=False, headers={"Connection": "close"}, timeout=_TIMEOUT_S)

    def read(self) -> Sample:
        """Read everything once.

        Raises:
            VlmError: (UNAVAILABLE) no Triton answers.
        """
        server = self._json("/v2")
        statistics = self._json("/v2/models/stats")
        values, problem = self._metrics()
        return Sample(
            at_s=time.monotonic(),
            version=f"{server.get('name', 'server')} {server.get('version', '')}".strip(),
            ready=self._is_ok("/v2/health/ready"),
            models=tuple(self._model(entry) for entry in statistics.get("model_stats", [])),
            values=values,
            metrics_problem=problem,
        )

    def _model(self, entry: dict[str, Any]) -> ModelCounts:
        inference = entry["inference_stats"]
        compute = ("compute_input", "compute_infer", "compute_output")
        return ModelCounts(
            name=entry["name"],
            ready=self._is_ok(f"/v2/models/{entry['name']}/ready"),
            inferences=entry["inference_count"],
            executions=entry["execution_count"],
            failures=inference["fail"]["count"],
            queue_ms=inference["queue"]["ns"] / 1e6,
            compute_ms=sum(inference[part]["ns"] for part in compute) / 1e6,
        )

    def _metrics(self) -> tuple[dict[str, dict[tuple[tuple[str, str], ...], float]], str | None]:
        try:
            answer = self._pool.request("GET", self.metrics_url)
            if answer.status != 200:
                return {}, f"{self.metrics_url} answers {answer.status}; give --metrics-url"
            return dict(_parsed(answer.data.decode())), None
        except urllib3.exceptions.HTTPError:
            return {}, f"no metrics at {self.metrics_url}; give --metrics-url"
        except ValueError:
            return {}, f"what {self.metrics_url} answers is no Prometheus text; give --metrics-url"

    def _json(self, path: str) -> dict[str, Any]:
        hint = "start one with `tvlm serve`, or give its address with --url"
        try:
            answer = self._pool.request("GET", self.url + path)
            if answer.status != 200:
                raise ValueError
            found = json.loads(answer.data)
            if not isinstance(found, dict):
                raise ValueError
        except urllib3.exceptions.HTTPError:
            raise VlmError("UNAVAILABLE", f"no server answers at {self.url}; {hint}") from None
        except ValueError:
            raise VlmError("UNAVAILABLE", f"what answers at {self.url} is no Triton; {hint}") from None
        return found

    def _is_ok(self, path: str) -> bool:
        try:
            return bool(self._pool.request("GET", self.url + path).status == 200)
        except urllib3.exceptions.HTTPError:
            return False


def _parsed(text: str) -> Iterator[tuple[str, dict[tuple[tuple[str, str], ...], float]]]:
    """Samples by name; a histogram's are its _sum and _count."""
    names: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                names.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    yield from names.items()
