"""The sequence of training batches over all epochs, which can start at any position."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import TrainingError
from .sources import Batch, RowSource


class Batches:
    """The batches of a run."""

    def __init__(self, source: RowSource, size: int, seed: int) -> None:
        self.source, self.size, self.seed = source, size, seed
        self._position = (0, 0)
        self._epoch: Iterator[Batch] | None = None

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the number of its batches that were used."""
        return self._position

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        self._position, self._epoch = position, None

    def next(self) -> Batch:
        """The next batch."""
        while True:
            epoch, taken = self._position
            if self._epoch is None:
                self._epoch = self.source.epoch(epoch, self.size, self.seed, skip=taken)
            batch = next(self._epoch, None)
            if batch is not None:
                self._position = (epoch, taken + 1)
                return batch
            if taken == 0:
                raise TrainingError("the training data have no rows")
            self.position = (epoch + 1, 0)
