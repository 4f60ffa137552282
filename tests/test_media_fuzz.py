"""Mutated files of every format, through the real worker process: 60 s in CI, a few elsewhere (tests/fuzz_media.py)."""

from __future__ import annotations

import os

from tests.fuzz_media import Report, fuzz

SECONDS = float(os.environ.get("MEDIA_FUZZ_SECONDS", "5"))


def test_mutated_files_hurt_nobody() -> None:
    report = Report()
    fuzz(SECONDS, seed=20261129, report=report)
    assert report.tiles > 0
    assert report.refused > 0
