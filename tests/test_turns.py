"""Encode that gives way to the token loop: real processes, related as those of a server are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.deployment import Deployment
from python_backends.workers.turns import MARK, Credit
from tests.conftest import ROOT
from tests.waiting import until

# Each is a stub with one worker; this process is the tritonserver of both.
STUB = """
import os, subprocess, sys
from python_backends.workers.turns import set_going
subprocess.run([sys.executable, "-c", sys.argv[1]])
set_going()
print("worker gone", flush=True)
sys.stdin.read()
"""
ENCODER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
TOKEN_LOOP = """
import os, sys
from python_backends.workers.turns import GivingWay
encode = GivingWay(1, 0.5)
print(os.getpid(), flush=True)
for _ in sys.stdin:
    encode.give_turn(0.0)
    with encode.stopped():
        print("in a step", flush=True)
        sys.stdin.readline()
    print("after it", flush=True)
"""


class Related:
    """A stub with its worker."""

    def __init__(self, code: str, **environment: str) -> None:
        self.stub = subprocess.Popen(
            [sys.executable, "-c", STUB, code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        self.worker = psutil.Process(int(self.hear()))

    def hear(self) -> str:
        assert self.stub.stdout is not None
        return self.stub.stdout.readline().strip()

    def tell(self) -> str:
        """Gives a line to the worker, and what it says to it."""
        assert self.stub.stdin is not None
        self.stub.stdin.write("\n")
        self.stub.stdin.flush()
        return self.hear()

    def is_stopped(self) -> bool:
        return self.worker.status() == psutil.STATUS_STOPPED


@contextmanager
def related(code: str, **environment: str) -> Iterator[Related]:
    relative = Related(code, **environment)
    try:
        yield relative
    finally:
        with suppress(psutil.NoSuchProcess):
            relative.worker.kill()
        relative.stub.kill()
        relative.stub.wait()


@pytest.fixture
def encoder() -> Iterator[Related]:
    with related(ENCODER, **{MARK: "1"}) as relative:
        yield relative


def test_encode_stands_still_in_a_step_and_only_then(encoder: Related) -> None:
    with related(TOKEN_LOOP) as loop, related(ENCODER) as other:
        for _ in range(2):
            assert loop.tell() == "in a step"
            assert until(encoder.is_stopped, 5)
            assert not other.is_stopped()
            assert loop.tell() == "after it"
            assert until(lambda: not encoder.is_stopped(), 5)


def test_encode_goes_on_when_the_token_loop_dies_in_a_step(encoder: Related) -> None:
    with related(TOKEN_LOOP) as loop:
        loop.tell()
        assert until(encoder.is_stopped, 5)
        loop.worker.kill()
        assert loop.hear() == "worker gone"
        assert until(lambda: not encoder.is_stopped(), 5)


def test_an_encoder_that_comes_later_gives_way_too() -> None:
    with related(TOKEN_LOOP) as loop:
        assert loop.tell() == "in a step"
        assert loop.tell() == "after it"
        with related(ENCODER, **{MARK: "1"}) as encoder:

            def stops() -> bool:
                loop.tell()
                stopped = encoder.is_stopped()
                loop.tell()
                return stopped

            assert until(stops, 10)


@given(
    share=st.floats(0.05, 0.95),
    steps=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.5)), max_size=60),
)
def test_encode_has_its_share_whatever_the_token_loop_wants(share: float, steps: list[tuple[float, float]]) -> None:
    """Steps with pauses before them; turns in small pieces until one is not due any more."""
    credit = Credit(share)
    ran = stood = 0.0
    for pause, step in steps:
        credit.ran(pause)
        ran += pause
        while not credit.is_left:
            credit.ran(0.005)
            ran += 0.005
        credit.stood(step)
        stood += step
        assert stood <= 1.0 + 0.5 + ran * (1 - share) / share + 1e-6


BUSY = "import os; print(os.getpid(), flush=True)\nwhile True: pass"
RUNNING_SHARE = """
import os, sys, time
from python_backends.workers.turns import GivingWay
encode = GivingWay(1, 0.25)
print(os.getpid(), flush=True)
sys.stdin.readline()
begin = time.monotonic()
turns = 0
while time.monotonic() - begin < 4:
    before = time.monotonic()
    encode.give_turn(0.0)
    turns += time.monotonic() - before > 0.02
    with encode.stopped():
        time.sleep(0.02)
print(turns, flush=True)
"""


@pytest.mark.parametrize("busy", [True, False])
def test_encode_with_work_has_turns_of_its_own_under_steps_without_end(busy: bool) -> None:
    with related(BUSY if busy else ENCODER, **{MARK: "1"}) as encoder, related(RUNNING_SHARE) as loop:
        before = sum(encoder.worker.cpu_times()[:2])
        turns = int(loop.tell())
        used_s = sum(encoder.worker.cpu_times()[:2]) - before
        assert (turns > 3 and used_s > 0.2) if busy else turns == 0


def test_only_encode_on_a_cpu_gives_way() -> None:
    def gives_way(**vision: object) -> bool:
        return Deployment.model_validate({"checkpoint": "x", "pools": {"vision": vision}}).pools.vision.gives_way

    assert gives_way(cpu_share=0.1)
    assert not gives_way()
