"""What `perf.hops` says of a request, on processes of this test."""

from __future__ import annotations

import subprocess
import sys

import psutil

from perf.hops import Cost, cost, table

# Answers every line, after a thread of its own was woken for it.
_PEER = """
import queue, sys, threading
asked = queue.Queue()
def answer():
    while asked.get():
        print(sum(range(200_000)), flush=True)
threading.Thread(target=answer, daemon=True).start()
for line in sys.stdin:
    asked.put(line)
"""


def test_wake_ups_of_all_threads_and_cpu_time_are_counted() -> None:
    asked = 40
    with subprocess.Popen(
        [sys.executable, "-c", _PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        process = psutil.Process(peer.pid)

        def ask() -> None:
            peer.stdin.write("\n")
            peer.stdout.readline()

        ask()
        before = cost(process)
        for _ in range(asked):
            ask()
        one = cost(process).since(before, asked)
        peer.stdin.close()
    assert 0.5 <= one.wake_ups <= 10  # two, unless one of the threads is asked before it waits
    assert 0 < one.cpu_ms < 100


def test_table_has_a_row_for_each_process() -> None:
    rows = table({"vlm: stub": Cost(7.04, 55.6)}, {"vlm: stub": Cost(23.66, 219.4)}).splitlines()
    assert rows[2:] == ["| vlm: stub | 7.0 | 56 | 23.7 | 219 |"]
