"""A status as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from client.status.status import Status


def render(status: Status) -> RenderableType:
    """Everything that the server tells; parts it has no figures for are left out."""
    parts: list[RenderableType] = [_head(status), _models(status)]
    if status.modalities:
        parts.append(_modalities(status))
    if status.replicas:
        parts.append(_replicas(status))
    if figures := list(_figures(status)):
        parts.append(_lines(figures))
    if status.problem:
        parts.append(Text(status.problem, "yellow"))
    elif not status.modalities:
        parts.append(Text("Queues, pages and rates appear with the first request.", "dim"))
    return Group(*parts)


def _head(status: Status) -> Text:
    state = Text("ready", "green") if status.ready else Text("not ready", "bold red")
    return Text.assemble((status.url, "bold"), f"  {status.version}  ", state)


def _models(status: Status) -> Table:
    table = _table("model", "state", "inferences", "per s", "batch", "queue ms", "compute ms", "failed")
    for model in status.models:
        table.add_row(
            model.name,
            Text("ready", "green") if model.ready else Text("not ready", "bold red"),
            f"{model.inferences:,}",
            f"{model.inferences_per_s:,.1f}",
            _number(model.mean_batch, 1),
            _number(model.mean_queue_ms, 1),
            _number(model.mean_compute_ms, 1),
            Text(f"{model.failures:,}", "red" if model.failures else "dim"),
        )
    return table


def _modalities(status: Status) -> Table:
    table = _table("requests", "waiting", "their tokens", "running", "per s", "failed per s", "first token ms")
    for row in status.modalities:
        failed = Text(f"{row.failed_per_s:,.1f}", "red" if row.failed_per_s else "dim")
        first = _number(row.mean_first_token_ms, 0)
        now = (f"{count:,}" for count in (row.waiting, row.waiting_tokens, row.running))
        table.add_row(row.modality, *now, f"{row.requests_per_s:,.1f}", failed, first)
    return table


def _replicas(status: Status) -> Table:
    table = _table("replica", "sequences", "tokens to prefill", "KV cache")
    for replica in status.replicas:
        used = "-" if replica.kv_usage is None else f"{replica.kv_usage:.0%}"
        table.add_row(replica.replica, f"{replica.sequences:,}", f"{replica.prefill_tokens:,}", used)
    return table


def _figures(status: Status) -> Iterable[tuple[str, str]]:
    if status.encode_budget_tokens is not None:
        yield "in encode", f"{status.encode_tokens or 0:,} of {status.encode_budget_tokens:,} visual tokens"
    if status.embedding_pages:
        states = ", ".join(f"{count:,} {state}" for state, count in status.embedding_pages.items())
        yield "embedding pages", states
    if status.encoder_cache_hits is not None:
        yield "encoder cache", f"{status.encoder_cache_hits:.0%} of all images were found"
    if status.output_tokens_per_s is not None:
        yield "tokens per s", f"{status.input_tokens_per_s or 0:,.1f} in, {status.output_tokens_per_s:,.1f} out"


def _lines(figures: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in figures:
        table.add_row(Text(f" {name}", "bold"), value)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="left" if name == "state" else "right")
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
