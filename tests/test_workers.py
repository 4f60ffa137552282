"""The supervised worker: what a stub sees of it, whatever the worker does."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from python_backends.errors import ServingError, Status
from python_backends.workers import SupervisedWorker, WorkerSpec
from tests.waiting import until


@contextmanager
def worker(target: str = "FakeStage", **options: Any) -> Iterator[SupervisedWorker]:
    callbacks = {name: options.pop(name) for name in ("on_event", "on_death") if name in options}
    config = options.pop("config", {})
    spec = WorkerSpec("fake", f"tests.fakes.targets:{target}", config, slot_bytes=1 << 20, **options)
    supervised = SupervisedWorker(spec, **callbacks)
    supervised.start()
    try:
        yield supervised
    finally:
        supervised.close()


def test_call_carries_arrays_and_meta_both_ways() -> None:
    with worker() as stage:
        arrays = [np.arange(12, dtype=np.uint8).reshape(3, 4), np.ones((2, 0, 5), np.float32), np.float16([1.5])]
        reply = stage.call("double", arrays, {"note": "kept"})
        assert reply.meta["note"] == "kept"
        for got, sent in zip(reply.arrays, arrays, strict=True):
            assert got.dtype == sent.dtype
            np.testing.assert_array_equal(got, sent * 2)


def test_worker_yields_to_others_as_it_is_told() -> None:
    with worker(nice=7) as stage:
        assert stage.call("double").meta["nice"] == os.nice(0) + 7


@pytest.mark.parametrize("misdeed", ["die", "freeze"])
def test_worker_that_dies_or_freezes_fails_its_call_and_comes_back(misdeed: str) -> None:
    deaths = threading.Semaphore(0)
    with worker(on_death=lambda reason: deaths.release()) as stage:
        before = stage.call("double").meta["pid"]
        with pytest.raises(ServingError, match="fake: ") as error:
            stage.call(misdeed)
        assert error.value.status is Status.UNAVAILABLE
        assert deaths.acquire(timeout=10)
        after = stage.call("double").meta["pid"]
        assert after != before
        assert not psutil.pid_exists(before)


def test_worker_that_hangs_in_native_code_is_killed_after_the_call_timeout() -> None:
    with worker(call_timeout_s=0.5) as stage:
        with pytest.raises(ServingError, match=r"hung: busy for .* \(limit 0.5 s\)"):
            stage.call("hang")
        assert stage.restarts == 1 or stage.call("double")


def test_worker_that_deadlocks_between_two_calls_is_replaced() -> None:
    """It is idle and its heart beats: only the call that it does not take up shows it."""
    with worker("FakeEngine", call_timeout_s=0.5) as engine:
        engine.call("deadlock")
        with pytest.raises(ServingError, match="hung: a call was not taken up for"):
            engine.call("count")
        assert until(lambda: engine.ready, 20)
        assert engine.call("count").meta == {}


def test_failing_listener_costs_the_worker_and_not_the_watch_over_it() -> None:
    with worker("FakeEngine", on_event=lambda _: 1 / 0, on_death=lambda _: 1 / 0) as engine:
        engine.call("count", meta={"count": 1})
        assert until(lambda: engine.restarts == 1, 20)
        assert engine.call("count").meta == {}


def test_exception_in_the_target_is_answered_and_harms_nothing_else() -> None:
    with worker() as stage:
        pid = stage.call("double").meta["pid"]
        with pytest.raises(ServingError, match="ValueError: bad weather") as error:
            stage.call("raise")
        assert error.value.status is Status.INTERNAL
        assert stage.call("double").meta["pid"] == pid


def test_arrays_larger_than_a_slot_are_refused_with_both_sizes() -> None:
    with worker() as stage, pytest.raises(ServingError, match="2097152 bytes are more than a slot's 1048576"):
        stage.call("double", [np.zeros(2 << 20, np.uint8)])


def test_target_that_cannot_load_says_why_at_start() -> None:
    with pytest.raises(ServingError, match="no such weights"), worker(config={"refuse_to_load": True}):
        pass


def test_engine_events_arrive_in_order_without_being_asked_for() -> None:
    events: queue.Queue[int] = queue.Queue()
    with worker("FakeEngine", on_event=events.put) as engine:
        engine.call("count", meta={"count": 5})
        assert [events.get(timeout=10) for _ in range(5)] == [4, 3, 2, 1, 0]


def test_closed_worker_leaves_no_process_and_no_descriptor() -> None:
    descriptors = psutil.Process().num_fds()
    with worker() as stage:
        pid = stage.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)
    assert psutil.Process().num_fds() <= descriptors
    assert not [name for name in os.listdir("/dev/shm") if "fake" in name]


def test_concurrent_calls_get_their_own_answers() -> None:
    with worker(slots=2) as stage:
        answers: dict[int, float] = {}

        def ask(number: int) -> None:
            answers[number] = float(stage.call("double", [np.float64([number])]).arrays[0][0])

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {n: 2.0 * n for n in range(16)}
