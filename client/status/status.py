"""From two readings to what a person wants to know: states now, and rates between the two."""

from __future__ import annotations

from dataclasses import dataclass

from client.status.sample import ModelCounts, Sample


@dataclass(frozen=True)
class ModelStatus:
    """A Triton model. Rates and means are of the time between the readings, None where nothing happened."""

    name: str
    ready: bool
    inferences: int
    failures: int
    inferences_per_s: float
    mean_batch: float | None
    mean_queue_ms: float | None
    mean_compute_ms: float | None


@dataclass(frozen=True)
class ModalityStatus:
    """The requests of one modality."""

    modality: str
    waiting: int
    waiting_tokens: int  # of their prompts
    running: int
    requests_per_s: float
    failed_per_s: float
    mean_first_token_ms: float | None


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica of the LLM; `kv_usage` is a share of its KV cache, None where the engine tells none."""

    replica: str
    sequences: int
    prefill_tokens: int
    kv_usage: float | None


@dataclass(frozen=True)
class Status:
    """A server. None and empty where it has no such metric (yet): metrics appear with the first request."""

    url: str
    version: str
    ready: bool
    seconds: float
    models: list[ModelStatus]
    modalities: list[ModalityStatus]
    replicas: list[ReplicaStatus]
    embedding_pages: dict[str, int]  # held, kept, free
    encode_tokens: int | None
    encode_budget_tokens: int | None
    encoder_cache_hits: float | None  # share of the images since the server started
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    problem: str | None


def status_of(url: str, before: Sample, after: Sample) -> Status:
    """What happened between two readings of the server at `url`."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    earlier = {model.name: model for model in before.models}

    def rate(name: str) -> float | None:
        now = after.total(name)
        return None if now is None else _since(now, before.total(name)) / seconds

    queries, hits = after.total("tvlm_encoder_cache_queries_total"), after.total("tvlm_encoder_cache_hits_total")
    return Status(
        url=url,
        version=after.version,
        ready=after.ready,
        seconds=seconds,
        models=[_model(model, earlier.get(model.name), seconds) for model in after.models],
        modalities=_modalities(before, after, seconds),
        replicas=_replicas(after),
        embedding_pages={state: int(pages) for state, pages in after.by("tvlm_embedding_pages", "state").items()},
        encode_tokens=_whole(after.total("tvlm_encode_tokens")),
        encode_budget_tokens=_whole(after.total("tvlm_encode_budget_tokens")),
        encoder_cache_hits=(hits or 0.0) / queries if queries else None,
        input_tokens_per_s=rate("tvlm_input_tokens_total"),
        output_tokens_per_s=rate("tvlm_output_tokens_total"),
        problem=after.metrics_problem,
    )


def _model(now: ModelCounts, before: ModelCounts | None, seconds: float) -> ModelStatus:
    if before is None or before.inferences > now.inferences:  # loaded again: its counters began anew
        before = ModelCounts(now.name, now.ready, 0, 0, 0, 0.0, 0.0)
    inferences = now.inferences - before.inferences
    return ModelStatus(
        name=now.name,
        ready=now.ready,
        inferences=now.inferences,
        failures=now.failures,
        inferences_per_s=inferences / seconds,
        mean_batch=_mean(inferences, now.executions - before.executions),
        mean_queue_ms=_mean(now.queue_ms - before.queue_ms, inferences),
        mean_compute_ms=_mean(now.compute_ms - before.compute_ms, inferences),
    )


def _modalities(before: Sample, after: Sample, seconds: float) -> list[ModalityStatus]:
    waiting = after.by("tvlm_waiting_requests", "modality")
    tokens = after.by("tvlm_pending_tokens", "modality")
    running = after.by("tvlm_running_requests", "modality")
    ended = after.by("tvlm_requests_total", "modality")

    def grown(name: str, **labels: str) -> float:
        return _since(after.total(name, **labels) or 0.0, before.total(name, **labels))

    found = []
    for modality in sorted(waiting.keys() | running.keys() | ended.keys()):
        every = grown("tvlm_requests_total", modality=modality)
        fine = grown("tvlm_requests_total", modality=modality, outcome="ok")
        ttft_s = grown("tvlm_time_to_first_token_seconds_sum", modality=modality)
        started = grown("tvlm_time_to_first_token_seconds_count", modality=modality)
        found.append(
            ModalityStatus(
                modality=modality,
                waiting=int(waiting.get(modality, 0)),
                waiting_tokens=int(tokens.get(modality, 0)),
                running=int(running.get(modality, 0)),
                requests_per_s=every / seconds,
                failed_per_s=(every - fine) / seconds,
                mean_first_token_ms=_mean(ttft_s * 1e3, started),
            )
        )
    return found


def _replicas(now: Sample) -> list[ReplicaStatus]:
    sequences = now.by("tvlm_running_sequences", "replica")
    prefill = now.by("tvlm_prefill_tokens", "replica")
    usage = now.by("tvlm_kv_cache_usage_ratio", "replica")
    return [
        ReplicaStatus(name, int(sequences.get(name, 0)), int(prefill.get(name, 0)), usage.get(name))
        for name in sorted(sequences.keys() | prefill.keys() | usage.keys())
    ]


def _since(now: float, before: float | None) -> float:
    """A counter's growth; one that shrank began anew."""
    return now - before if before is not None and before <= now else now


def _mean(total: float, count: float) -> float | None:
    return total / count if count > 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
