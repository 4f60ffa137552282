"""Whether a request is taken: pure decisions, each refusal with the limit's name and value.

What could never be served is INVALID_ARG; what could be later is UNAVAILABLE, with a hint when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from python_backends.errors import ServingError, invalid, unavailable
from python_backends.scheduling.jobs import Job, Modality

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class AdmissionSettings:
    """The limits; what is named after a key of the deployment file is that key's value."""

    queue_limits: Mapping[Modality, int]
    encode_budget_tokens: int = UNLIMITED
    waiting_visual_tokens: int = UNLIMITED  # admission.waiting_visual_mb, in tokens
    kv_tokens: int = UNLIMITED  # what pools.text.kv_cache_mb holds; unknown on GPUs, where the engine sizes it
    memory_watermark: float = 1.0
    breaker_pressure: float = 1.0
    breaker_tokens: int = UNLIMITED


@dataclass(frozen=True)
class Memory:
    """Used shares, 0 to 1."""

    kv: float = 0.0  # the KV cache of the replica with the most room
    pages: float = 0.0  # cache.encoder_mb, as far as running requests hold it
    kv_setting: str = "pools.text.kv_cache_mb"  # what sizes the KV cache

    def needed_by(self, job: Job) -> dict[str, float]:
        """The memories that the job will take of, by the setting that sizes them."""
        pages = {} if job.modality is Modality.TEXT else {"cache.encoder_mb": self.pages}
        return {self.kv_setting: self.kv, **pages}


@dataclass(frozen=True)
class Load:
    """What the server holds already."""

    waiting: Mapping[Modality, int]  # jobs
    memory: Memory
    expected_s: float  # until the first token of a job that comes now, from the measured rates
    alone_s: float  # the same if nothing else waited


def refusal(job: Job, now: float, load: Load, settings: AdmissionSettings) -> ServingError | None:
    """Why the job is not taken; None when it is."""
    return (
        _too_large(job, settings)
        or _queue_full(job, load, settings)
        or _memory_full(job, load, settings)
        or _breaker_open(job, load, settings)
        or _too_late(job, now, load)
    )


def pressure(job: Job, load: Load, settings: AdmissionSettings) -> tuple[float, str]:
    """How near the fullest queue, or memory that the job needs, is to its end (0 to 1), and which it is."""
    shares = {
        f"scheduler.classes.{modality.value}.queue_limit": load.waiting[modality] / limit
        for modality, limit in settings.queue_limits.items()
    } | load.memory.needed_by(job)
    name = max(shares, key=shares.__getitem__)
    return shares[name], name


def _too_large(job: Job, settings: AdmissionSettings) -> ServingError | None:
    item = max(job.item_tokens, default=0)
    if item > settings.encode_budget_tokens:
        return invalid(
            "image", f"{item} visual tokens are over scheduler.encode_budget_tokens = {settings.encode_budget_tokens}"
        )
    if job.visual_tokens > settings.waiting_visual_tokens:
        return invalid(
            "image",
            f"{job.visual_tokens} visual tokens are over the {settings.waiting_visual_tokens} "
            "that admission.waiting_visual_mb holds",
        )
    if job.sequence_tokens > settings.kv_tokens:
        return invalid(
            "max_tokens",
            f"{job.prompt_tokens} prompt and {job.answer_tokens} answer tokens are over the {settings.kv_tokens} "
            "that pools.text.kv_cache_mb holds",
        )
    return None


def _queue_full(job: Job, load: Load, settings: AdmissionSettings) -> ServingError | None:
    waiting, limit = load.waiting[job.modality], settings.queue_limits[job.modality]
    if waiting < limit:
        return None
    return unavailable(
        f"{waiting} {job.modality.value} requests wait already "
        f"(limit scheduler.classes.{job.modality.value}.queue_limit = {limit})",
        retry_after_s=load.expected_s,
    )


def _memory_full(job: Job, load: Load, settings: AdmissionSettings) -> ServingError | None:
    """Stop taking, so that what runs has what it needs to finish."""
    if max(load.memory.kv, load.memory.pages) < settings.memory_watermark:
        return None
    for name, share in load.memory.needed_by(job).items():
        if share >= settings.memory_watermark:
            return unavailable(
                f"{name} is used to {share:.0%} (limit admission.memory_watermark = {settings.memory_watermark:.0%})",
                retry_after_s=load.expected_s,
            )
    return None


def _breaker_open(job: Job, load: Load, settings: AdmissionSettings) -> ServingError | None:
    """The very large go first: one of them would push many small ones over the limits."""
    if job.sequence_tokens <= settings.breaker_tokens:
        return None
    share, name = pressure(job, load, settings)
    if share < settings.breaker_pressure:
        return None
    return unavailable(
        f"{job.sequence_tokens} prompt and answer tokens are over admission.breaker_tokens = {settings.breaker_tokens} "
        f"while {name} is used to {share:.0%} (limit admission.breaker_pressure = {settings.breaker_pressure:.0%})",
        retry_after_s=load.expected_s,
    )


def _too_late(job: Job, now: float, load: Load) -> ServingError | None:
    if job.deadline_s is None or now + load.expected_s <= job.deadline_s:
        return None
    patience_s = job.deadline_s - job.arrived_s
    return unavailable(
        f"deadline_ms: {patience_s * 1e3:.0f} ms can't be met; the first token is "
        f"expected in {load.expected_s * 1e3:.0f} ms",
        retry_after_s=load.expected_s - patience_s if load.alone_s <= patience_s else None,
    )
