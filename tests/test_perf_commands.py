"""The commands of perf/ as a user types them wrong: one line, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("perf.load {folder}/none.jsonl", "No such file"),
        ("perf.load {folder}/empty.jsonl", "is not a workload file"),
        ("perf.load {folder}/one.jsonl --url ftp://localhost:1", "'ftp://localhost:1' is neither grpc://"),
        ("perf.load {folder}/one.jsonl --concurrency 0", "--concurrency must be at least 1"),
        ("perf.workloads azure-lmm --rate 0 --output {folder}/x.jsonl", "rate and seconds must be positive"),
        ("perf.workloads azure-lmm --output {folder}", "Is a directory"),
        ("perf.hops --built {folder}", "compose it with"),
        ("perf.profile --built {folder}", "No such file"),
        ("perf.baselines monolith --artifacts {folder} --port 9 --cores x", "invalid literal"),
        ("perf.bench quick --output {folder}/empty.jsonl", "exists"),
        ("perf.bench standard --deployment {folder}/empty.jsonl --output {folder}/b", "empty.jsonl"),
        ("perf.bench quick --variant x:a=1 --output {folder}/c", "unknown key 'a'"),
        ("perf.bench quick --variant x:checkpoint.y=1 --output {folder}/c", "checkpoint is no section"),
    ],
)
def test_what_can_not_be_is_one_line(line: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    workload = [sys.executable, "-m", "perf.workloads", "single-text", "--seconds", "5", "--output"]
    if "one.jsonl" in line:
        subprocess.run([*workload, str(tmp_path / "one.jsonl")], cwd=ROOT, check=True, capture_output=True)
    command = [sys.executable, "-m", *line.format(folder=tmp_path).split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert error in done.stderr.splitlines()[-1]
