"""The load generator: sends a workload at its times whatever the server does (open loop), or so many at a time.

Latency counts from the intended time, so a late sender cannot flatter the server (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Sequence
from typing import Any

from client.types import VlmError
from perf.load.records import Record, Run, new_record
from perf.load.targets import Target
from perf.workloads import Request

TIMEOUT_S = 120.0
_LEAD_S = 0.2  # between the begin and the first request's time


async def open_loop(
    requests: Sequence[Request], payloads: Sequence[Any], target: Target, timeout_s: float = TIMEOUT_S
) -> Run:
    """Send every request at its `at_s`, and wait for all answers; each ends within `timeout_s` of being sent."""
    clock = _Clock(_LEAD_S)
    records = [new_record(request, request.at_s) for request in requests]

    async def one(record: Record, payload: Any) -> None:
        await asyncio.sleep(max(0.0, record.intended_s - clock.now()))
        await _exchange(record, payload, target, clock, timeout_s)

    await asyncio.gather(*(one(record, payload) for record, payload in zip(records, payloads, strict=True)))
    return clock.run(records)


async def closed_loop(
    requests: Iterable[Request],
    payloads: Iterable[Any],
    target: Target,
    concurrency: int,
    timeout_s: float = TIMEOUT_S,
) -> Run:
    """Keep `concurrency` requests in flight until all are answered; intended times are those of sending."""
    clock = _Clock(0.0)
    records: list[Record] = []
    queue = iter(zip(requests, payloads, strict=True))

    async def client() -> None:
        for request, payload in queue:
            record = new_record(request, clock.now())
            records.append(record)
            await _exchange(record, payload, target, clock, timeout_s)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return clock.run(records)


async def _exchange(record: Record, payload: Any, target: Target, clock: _Clock, timeout_s: float) -> None:
    record.sent_s = clock.now()
    last_s = 0.0
    try:
        async for chunk in target.stream(payload, timeout_s):
            now = clock.now()
            if chunk.text:
                if record.first_s is None:
                    record.first_s = now
                else:
                    record.gaps_s.append(round(now - last_s, 6))
                last_s = now
            record.input_tokens = chunk.input_tokens or record.input_tokens
            record.output_tokens = chunk.output_tokens or record.output_tokens
        record.end_s = clock.now()
    except VlmError as error:
        record.outcome, record.error = error.status, error.message
    except Exception as error:  # whatever it is, the other requests' records are not lost for it
        record.outcome, record.error = "INTERNAL", f"{type(error).__name__}: {error}"


class _Clock:
    """Seconds since the run's begin, and what this process used meanwhile."""

    def __init__(self, lead_s: float) -> None:
        gc.collect()  # now rather than in the run
        self._cpu_s = time.process_time()
        self._begin = time.perf_counter() + lead_s

    def now(self) -> float:
        return time.perf_counter() - self._begin

    def run(self, records: list[Record]) -> Run:
        wall_s = self.now()
        late_s = max((record.sent_s - record.intended_s for record in records), default=0.0)
        return Run(records, wall_s, (time.process_time() - self._cpu_s) / wall_s, late_s)
