"""The load generator, against a target that is a few lines of asyncio."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.types import VlmError
from perf.load import OK, Chunk, closed_loop, load_run, open_loop
from perf.load.targets import LeastBacklog
from perf.workloads import Request


class ScriptedTarget:
    """Answers after `delay_s`, two pieces with `gap_s` between them; `broken` request numbers fail."""

    def __init__(self, delay_s: float = 0.0, gap_s: float = 0.0, broken: frozenset[int] = frozenset()) -> None:
        self.delay_s, self.gap_s, self.broken = delay_s, gap_s, broken
        self.running = self.most = 0

    def prepare(self, request: Request) -> int:
        return request.number

    async def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            if payload in self.broken:
                raise VlmError("UNAVAILABLE", "full")
            yield Chunk("a")
            await asyncio.sleep(self.gap_s)
            yield Chunk("b", 7, 2)
        finally:
            self.running -= 1

    async def close(self) -> None:
        pass


def requests(count: int, every_s: float) -> list[Request]:
    return [Request(number, number * every_s, "text", "hi", (), 2) for number in range(count)]


def test_open_loop_does_not_wait_for_answers() -> None:
    asked = requests(10, 0.01)
    target = ScriptedTarget(delay_s=0.3, gap_s=0.05)
    run = asyncio.run(open_loop(asked, [target.prepare(r) for r in asked], target))
    assert target.most == 10
    for record, request in zip(run.records, asked, strict=True):
        assert record.outcome == OK
        assert record.intended_s == request.at_s
        assert record.sent_s >= request.at_s
        assert record.ttft_s is not None
        assert record.ttft_s >= 0.3
        assert len(record.gaps_s) == 1
        assert record.gaps_s[0] >= 0.05
        assert (record.input_tokens, record.output_tokens) == (7, 2)
    assert run.tokens_per_s == pytest.approx(20 / run.wall_s)


def test_latency_counts_from_the_intended_time() -> None:
    class Blocking(ScriptedTarget):
        async def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
            end = asyncio.get_running_loop().time() + 0.2
            while asyncio.get_running_loop().time() < end:
                pass  # holds the whole generator up, so that the second request is sent late
            yield Chunk("a", 1, 1)

    asked = requests(2, 0.01)
    target = Blocking()
    run = asyncio.run(open_loop(asked, [0, 1], target))
    assert run.worst_late_s > 0.1
    assert run.records[1].ttft_s is not None
    assert run.records[1].ttft_s > 0.35


def test_closed_loop_keeps_so_many_in_flight() -> None:
    asked = requests(20, 0.0)
    target = ScriptedTarget(delay_s=0.01)
    run = asyncio.run(closed_loop(asked, [target.prepare(r) for r in asked], target, 4))
    assert target.most == 4
    assert sorted(record.number for record in run.records) == list(range(20))


def test_failures_are_records_too_and_runs_survive_their_file(tmp_path: Path) -> None:
    class Confused(ScriptedTarget):
        async def stream(self, payload: Any, timeout_s: float) -> AsyncIterator[Chunk]:
            if payload == 1:
                raise KeyError("delta")
            async for chunk in super().stream(payload, timeout_s):
                yield chunk

    asked = requests(4, 0.0)
    target = Confused(broken=frozenset({2}))
    run = asyncio.run(open_loop(asked, [target.prepare(r) for r in asked], target))
    assert [record.outcome for record in run.records] == [OK, "INTERNAL", "UNAVAILABLE", OK]
    assert run.records[2].ttft_s is None
    run.save(tmp_path / "run.jsonl")
    assert load_run(tmp_path / "run.jsonl") == run


def test_a_server_that_fails_at_once_does_not_get_everything() -> None:
    router = LeastBacklog(2)
    with pytest.raises(VlmError), router.server(100) as first:
        raise VlmError("UNAVAILABLE", "dead")
    with router.server(100) as second, router.server(100) as third:
        assert (first, second, third) == (0, 1, 1)


def test_a_server_that_refuses_is_no_dead_one() -> None:
    router = LeastBacklog(2)
    with pytest.raises(VlmError), router.server(100):
        raise VlmError("INVALID_ARGUMENT", "max_tokens = 0")
    with router.server(100) as again:
        assert again == 0


def test_each_request_goes_where_the_least_is_unanswered() -> None:
    router = LeastBacklog(2)
    with router.server(100) as first, router.server(30) as second, router.server(30) as third:
        assert (first, second, third) == (0, 1, 1)
    with router.server(1) as after:
        assert after == 0
