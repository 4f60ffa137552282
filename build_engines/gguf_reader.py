"""Reads GGUF files with the `gguf` package, quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGUFReader


class PlainReader(GGUFReader):
    """GGUFReader on a plain array instead of its numpy.memmap, of which 100,000 tiny slices cost seconds."""

    @property
    def data(self) -> Any:
        """The file's bytes."""
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = np.asarray(mapped)
