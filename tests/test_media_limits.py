"""docs/limits.md is true: every hostile kind is answered as it says, in the time and memory that it says.

Pictures are made a sixteenth of the largest size here, and the memory that goes with their pixels counts as much less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.hostile import KINDS, SIDE, Stage, running_stage

DOCUMENT = Path(__file__).parents[1] / "docs" / "limits.md"
SCALE = 4  # of the side
SPARE_MB = 64  # allocators keep some
ROWS = {
    kind: (answer, float(seconds), float(megabytes))
    for kind, answer, seconds, megabytes in re.findall(
        r"^\| (.+?) \| (tile|refused) \| ([\d.]+) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE
    )
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with running_stage(SIDE // SCALE) as running:
        yield running


def test_every_kind_is_documented() -> None:
    assert list(ROWS) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_file_costs_what_the_document_says(stage: Stage, kind: str) -> None:
    answer, seconds, megabytes = ROWS[kind]
    cost = stage.cost(KINDS[kind](SIDE // SCALE))
    assert ("tile" if cost.answer == "tile" else "refused") == answer, cost.answer
    assert cost.seconds <= seconds
    assert cost.megabytes <= (megabytes / SCALE**2 if "full" in kind else megabytes) + SPARE_MB
