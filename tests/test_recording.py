"""What of the metrics reaches a registry: every count, and of gauges what changed."""

from __future__ import annotations

from collections.abc import Mapping

from python_backends.metrics import OUTPUT_TOKENS, RUNNING, TTFT, WAITING, Metric, Metrics


class FakeRegistry:
    """Keeps what it is told; the first value of `broken` raises."""

    def __init__(self, broken: Metric | None = None) -> None:
        self.values: list[tuple[str, float]] = []
        self._broken = broken

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        if metric is self._broken:
            self._broken = None
            raise RuntimeError("tritonserver does not answer")
        self.values.append((" ".join([metric.name, *labels.values()]), value))


def test_counts_are_all_told_and_gauges_when_they_change() -> None:
    registry = FakeRegistry()
    metrics = Metrics(registry)
    for value in (1, 1, 0, 0, 1):
        metrics.record(OUTPUT_TOKENS, value)
        metrics.record(TTFT, value, modality="text")
        metrics.record(RUNNING, value, replica="0")
        metrics.record(RUNNING, 1, replica="1")
    metrics.close()
    of = {name: [value for key, value in registry.values if key == name] for name, _ in registry.values}
    assert of["tvlm_output_tokens_total"] == of["tvlm_time_to_first_token_seconds text"] == [1, 1, 0, 0, 1]
    assert of["tvlm_running_sequences 0"] == [1, 0, 1]
    assert of["tvlm_running_sequences 1"] == [1]


def test_gauge_that_could_not_be_told_is_told_again() -> None:
    registry = FakeRegistry(broken=WAITING)
    metrics = Metrics(registry)
    metrics.record(WAITING, 0, modality="text")
    metrics.record(WAITING, 0, modality="text")
    metrics.close()
    assert registry.values == [("tvlm_waiting_requests text", 0)]
