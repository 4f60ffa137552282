"""How `tvlm serve` tells the router to drain, and the router that it has: two files in a folder that both know.

Triton gives a model no word of a coming end, and a request that says so would be open to strangers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CONTROL_VARIABLE = "TVLM_CONTROL"  # the folder; a plain tritonserver has none, and drains by its own rules


class DrainOrder:
    """Either end of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order, self._done = folder / "drain", folder / "drained"

    @classmethod
    def from_environment(cls) -> DrainOrder:
        """The router's end; without `tvlm serve` there is none to order it."""
        return cls(Path(os.environ.get(CONTROL_VARIABLE, "/nonexistent")))

    def open(self) -> None:
        """Make the folder, empty."""
        self.close()
        self._folder.mkdir()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def give(self, grace_s: float) -> None:
        """Admit nothing more, end what runs within the grace time."""
        draft = self._folder / "draft"
        draft.write_text(str(grace_s))
        draft.rename(self._order)  # whole, or not there

    def grace_s(self) -> float | None:
        """The grace time that was ordered, None while there is no order."""
        try:
            return float(self._order.read_text())
        except FileNotFoundError:
            return None

    def report_done(self) -> None:
        """Nothing runs any more."""
        self._done.touch()

    @property
    def is_done(self) -> bool:
        """Whether that was reported."""
        return self._done.exists()
