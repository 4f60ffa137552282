"""The command `tvlm status`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from client.types import VlmError

if TYPE_CHECKING:
    from client.status.sample import Reader
    from client.status.status import Status


def status(
    *,
    url: Annotated[str, typer.Option(help="Triton's HTTP front end.")] = "http://localhost:8000",
    metrics_url: Annotated[
        str | None, typer.Option(help="Triton's metrics.", show_default="port 8002 of the same host, /metrics")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds that rates are measured over.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch a line each interval.")] = False,
) -> None:
    """Show what a running server does: models, queues, pages, KV cache, cache hits and rates.

    \b
    Examples:
      tvlm status
      tvlm status --watch
      tvlm status --url http://gpu-1:8000 --json | jq .replicas
    """
    from client.status.sample import Reader  # noqa: PLC0415  (imports are most of a command's start)

    seen = _seen(Reader(url, metrics_url), interval_s)
    show = _show_json if as_json else _show_tables
    if not watch:
        first = next(seen)
        if isinstance(first, VlmError):
            raise first
        seen = iter([first])
    with contextlib.suppress(KeyboardInterrupt):
        show(seen, watch)


def _seen(reader: Reader, interval_s: float) -> Iterator[Status | VlmError]:
    """What is seen each interval; an error while nobody answers."""
    from client.status.status import status_of  # noqa: PLC0415

    before = None
    while True:
        try:
            after = reader.read()
        except VlmError as error:
            before = None
            yield error
        else:
            if before is not None:
                yield status_of(reader.url, before, after)
            before = after
        time.sleep(interval_s)


def _show_json(seen: Iterator[Status | VlmError], watch: bool) -> None:
    for status in seen:
        found = {"error": status.message} if isinstance(status, VlmError) else asdict(status)
        print(json.dumps(found, indent=None if watch else 2), flush=True)


def _show_tables(seen: Iterator[Status | VlmError], watch: bool) -> None:
    from client.status.view import render  # noqa: PLC0415

    console = Console(highlight=False)
    tables = (Text(each.message, "yellow") if isinstance(each, VlmError) else render(each) for each in seen)
    if watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for table in tables:
                live.update(table, refresh=True)
    else:
        for table in tables:
            console.print(table)
