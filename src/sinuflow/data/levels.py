"""Levels: which atom of its column a value is, or that it is missing, or part of the continuous distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: Atoms with a level of their own, at most; neighbouring rare ones share a level.
_MOST = 128


class Leveled(NamedTuple):
    """The levels of rows."""

    codes: Tensor  # (n, columns)
    within: Tensor  # (n,): the log-density of the values within their levels
    unknown: Tensor  # (n, columns): values that the column cannot have
    continuous: Tensor  # (n, columns): whether a value belongs to the continuous part


class Levels(Float64Module):
    r"""The levels of columns with atoms, missing values or categories.

    A column with m atoms has a level for each, one for missing values if it has any, and one for its continuous part.
    Of more than 128 atoms, neighbouring rare ones share a level; within it, atom j has its share of the level's
    probability, :math:`p_j / \sum_{i \in \text{level}} p_i`, divided by the step of the column's grid if there is one:
    then all values of the column have densities. A value that the column cannot have has the probability
    1 / (n + 2) after n rows, by the rule of succession, and the code 0, which stands for nothing.

    Example:
        >>> rain = Column("rain", "number", "double", rows=99, high=9.0, atoms=(0.0,), masses=(0.6,), missing=0.1)
        >>> Levels([rain]).locate(torch.tensor([[0.0], [torch.nan], [1.5]], dtype=torch.float64)).codes.flatten()
        tensor([0, 1, 2])
    """

    atoms: Tensor
    level: Tensor
    share: Tensor
    below: Tensor
    first: Tensor
    absent: Tensor
    rest: Tensor
    surprise: Tensor

    step: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        most = max([1, *(len(c.atoms) for c in columns)])
        sizes, levels, shares, below, first = [], [], [], [], []
        for c in columns:
            level, share = _grouped(c.masses)
            count = len(c.atoms)
            sizes.append(int(level[-1]) + 1 if count else 0)
            levels.append(np.pad(level, (0, most - count)))
            shares.append(np.pad(share, (0, most - count)))
            below.append(np.pad(np.cumsum([0.0, *c.masses]), (0, most - count), constant_values=2.0))
            starts = np.searchsorted(level, np.arange(sizes[-1] + 1))
            first.append(np.pad(starts, (0, 2 * _MOST + 2 - len(starts)), constant_values=count))
        atoms = [[*c.atoms, *[math.inf] * (most - len(c.atoms))] for c in columns]
        absent = [size if c.missing else -1 for c, size in zip(columns, sizes, strict=True)]
        sizes = [size + (c.missing > 0) for c, size in zip(columns, sizes, strict=True)]
        rest = [-1 if c.discrete else size for c, size in zip(columns, sizes, strict=True)]
        #: The number of levels of each column.
        self.sizes = [size + (not c.discrete) for c, size in zip(columns, sizes, strict=True)]
        # Columns with a continuous part can have any number: what they cannot have is a missing value, a probability.
        surprise = [-math.log(c.rows + 2.0) for c in columns]
        step = [math.log(c.cell) if c.cell and c.kind == "number" else 0.0 for c in columns]
        buffers: dict[str, Any] = {"atoms": atoms, "share": shares, "below": below, "surprise": surprise}
        buffers["step"] = step
        for name, values in buffers.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(values), dtype=torch.float64))
        indices: dict[str, Any] = {"level": levels, "first": first, "absent": absent, "rest": rest}
        for name, values in indices.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(values)))

    def locate(self, x: Tensor) -> Leveled:
        """The levels of rows (n, columns): NaN is a missing value, infinity one that the column cannot have."""
        place, atom = self._atom(x)
        missing = x.isnan()
        continuous = ~missing & ~atom & x.isfinite() & (self.rest >= 0)
        level = self.level.mT.gather(0, place)
        codes = torch.where(missing, self.absent, torch.where(continuous, self.rest, level))
        unknown = (codes < 0) | ~(missing | continuous | atom)
        share = self.share.mT.gather(0, place)
        discrete = ~continuous & ~missing
        within = torch.where(unknown, self.surprise, torch.where(atom, share, 0.0)) - self.step * discrete
        return Leveled(codes.masked_fill(unknown, 0), within.sum(1), unknown, continuous)

    def values(self, codes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Values (n, columns) of levels, NaN if missing, and which are to come from the continuous part."""
        u = torch.rand(codes.shape, generator=generator, dtype=torch.float64).mT
        level = codes.mT.clamp(max=self.first.shape[1] - 2)
        first, last = self.first.gather(1, level), self.first.gather(1, level + 1)
        low, high = self.below.gather(1, first), self.below.gather(1, last)
        place = torch.searchsorted(self.below, torch.lerp(low, high, u), right=True) - 1
        place = place.clamp(first, (last - 1).clamp(first)).clamp(max=self.atoms.shape[1] - 1)
        x = self.atoms.gather(1, place).mT
        return torch.where(codes == self.absent, torch.nan, x), codes == self.rest

    def _atom(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each value among its column's atoms, and whether it is one."""
        known = torch.where(x.isfinite(), x, 0.0).mT.contiguous()
        place = torch.searchsorted(self.atoms, known).clamp(max=self.atoms.shape[1] - 1)
        atom = (self.atoms.gather(1, place) == known).mT & x.isfinite()
        return place.mT, atom


def _grouped(masses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The level of each atom, and its log-share of the level: levels are runs of neighbours."""
    shares = np.asarray(masses, dtype=np.float64)
    count = len(shares)
    if count <= _MOST:
        return np.arange(count), np.zeros(count)
    own = np.zeros(count, dtype=bool)
    own[np.argsort(-shares, kind="stable")[: _MOST // 2]] = True
    # The others: runs between own atoms, divided where they hold more than their part of the probability.
    limit = shares[~own].sum() / (_MOST // 2)
    level, held, new = np.zeros(count, dtype=np.int64), 0.0, True
    for i in range(count):
        new = i > 0 and (own[i] or own[i - 1] or held + shares[i] > limit)
        held = shares[i] if new or i == 0 else held + shares[i]
        level[i] = level[i - 1] + new if i else 0
    totals = np.bincount(level, shares)
    return level, np.log(shares / totals[level])
