"""How long a batch of pictures that is not full waits for others. Pure: no clock, no I/O."""

from __future__ import annotations


class BatchWindow:
    """A batch waits only for pictures that are known to come, and only as long as going together saves.

    A lone picture never waits. The more of them come, the more batches wait, until they are full or the window is over.
    It is what a batch costs whatever its size: the intercept of a line through sizes and times, measured as they come
    (least squares, the old forgotten). Where a batch of eight takes eight times as long as one, nothing is saved and
    nobody waits.
    """

    _KEEP = 0.95  # of what was measured, at every batch

    def __init__(self, most_s: float, batch_size: int) -> None:
        """`most_s`: the window is never longer, and so long until two sizes were measured."""
        self._most_s = most_s
        self._batch_size = batch_size
        self._weight = self._n = self._s = self._nn = self._ns = 0.0  # sums of 1, n, s, n*n, n*s

    @property
    def saving_s(self) -> float:
        """What a picture saves that joins a batch, 0 to `most_s`."""
        spread = self._weight * self._nn - self._n * self._n
        if spread < 1e-6 * self._weight * self._nn or not self._weight:
            return self._most_s
        fixed_s = (self._s * self._nn - self._n * self._ns) / spread
        return min(self._most_s, max(0.0, fixed_s))

    def encoded(self, pictures: int, seconds: float) -> None:
        """A batch of so many took so long."""
        keep = self._KEEP
        self._weight = keep * self._weight + 1
        self._n = keep * self._n + pictures
        self._s = keep * self._s + seconds
        self._nn = keep * self._nn + pictures * pictures
        self._ns = keep * self._ns + pictures * seconds

    def wait_s(self, pictures: int, coming: int) -> float:
        """How long these may wait, from when the first of them was there; `coming`: pictures that are on their way."""
        return self.saving_s if coming and pictures < self._batch_size else 0.0
