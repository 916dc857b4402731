"""Staircase masks: row r of a matrix sees its first ``reach[r]`` columns, and reach never decreases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """Rows ``start:stop`` of the matrix are zero from column ``columns`` on."""

    start: int
    stop: int
    columns: int


class Staircase(NamedTuple):
    """A mask in blocks; ``exact`` if nothing is masked inside the blocks."""

    steps: tuple[Step, ...]
    exact: bool


def staircase(reach: Sequence[int], columns: int, least: int = 48) -> Staircase:
    """Group rows, of which row r sees the first ``reach[r]`` columns, into a few blocks.

    ``reach`` must not decrease. More blocks skip more of the matrix, but small products are slow:
    a block has at least ``least`` rows, and a matrix of few columns is a single block.

    Example:
        >>> staircase([1, 1, 2, 2, 3], columns=3, least=2)
        Staircase(steps=(Step(start=0, stop=2, columns=1), Step(start=2, stop=5, columns=3)), exact=False)
    """
    least = max(least, -(-len(reach) // 8)) if columns >= least else len(reach)
    edges = [r for r in range(1, len(reach)) if reach[r] != reach[r - 1]]
    starts = [0]
    for edge in edges:
        if edge - starts[-1] >= least and len(reach) - edge >= least:
            starts.append(edge)
    stops = [*starts[1:], len(reach)]
    steps = tuple(Step(start, stop, reach[stop - 1]) for start, stop in zip(starts, stops, strict=True))
    return Staircase(steps, all(reach[start] == reach[stop - 1] for start, stop, _ in steps))


def staircase_mask(reach: Sequence[int], columns: int) -> Tensor:
    """The mask as a boolean matrix: row r has ones up to column ``reach[r]``."""
    return torch.arange(columns) < torch.tensor(reach).unsqueeze(-1)
