"""Levels: the discrete part of a column's values: which atom, missing, or continuous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: The most atoms of a column with a level of their own; of more atoms, neighbouring rare ones share a level.
_MAX_LEVELS = 128


class LevelCodes(NamedTuple):
    """The levels of rows, as codes."""

    codes: Tensor  # (n, columns)
    log_within: Tensor  # (n,): the log-density of the values given their levels
    unknown: Tensor  # (n, columns): whether the value is one that the column cannot have
    continuous: Tensor  # (n, columns): whether the value belongs to the continuous part


class Levels(Float64Module):
    r"""The levels of columns with atoms, missing values or categories.

    A column with m atoms has a level for each, one for missing values if it has any, and one for its continuous part.
    Of more than 128 atoms, neighbouring rare ones share a level; given this level, atom j has the probability
    :math:`p_j / \sum_{i \in \text{level}} p_i`. If the column has a grid, probabilities are divided by its step, so
    that all its values have densities. A value that the column cannot have has the probability 1 / (n + 2) after n
    rows, by the rule of succession; its code is 0, a placeholder.

    Example:
        >>> rain = Column("rain", "number", "double", rows=99, high=9.0, atoms=(0.0,), masses=(0.6,), missing=0.1)
        >>> Levels([rain]).encode(torch.tensor([[0.0], [torch.nan], [1.5]], dtype=torch.float64)).codes.flatten()
        tensor([0, 1, 2])
    """

    atoms: Tensor
    atom_level: Tensor
    log_conditional: Tensor
    cumulative: Tensor
    first_atom: Tensor
    missing_level: Tensor
    continuous_level: Tensor
    log_unseen: Tensor
    log_step: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        width = max([1, *(len(c.atoms) for c in columns)])
        sizes, levels, conditionals, cumulative, first_atom = [], [], [], [], []
        for c in columns:
            level, log_conditional = _group_atoms(c.masses)
            count = len(c.atoms)
            sizes.append(int(level[-1]) + 1 if count else 0)
            levels.append(np.pad(level, (0, width - count)))
            conditionals.append(np.pad(log_conditional, (0, width - count)))
            cumulative.append(np.pad(np.cumsum([0.0, *c.masses]), (0, width - count), constant_values=2.0))
            starts = np.searchsorted(level, np.arange(sizes[-1] + 1))
            first_atom.append(np.pad(starts, (0, 2 * _MAX_LEVELS + 2 - len(starts)), constant_values=count))
        atoms = [[*c.atoms, *[math.inf] * (width - len(c.atoms))] for c in columns]
        missing_level = [size if c.missing else -1 for c, size in zip(columns, sizes, strict=True)]
        sizes = [size + (c.missing > 0) for c, size in zip(columns, sizes, strict=True)]
        continuous_level = [-1 if c.discrete else size for c, size in zip(columns, sizes, strict=True)]
        #: The number of levels of each column.
        self.sizes = [size + (not c.discrete) for c, size in zip(columns, sizes, strict=True)]
        # Any number has a density in a continuous part; what is unknown there is missing or out of bounds.
        log_unseen = [-math.log(c.rows + 2.0) for c in columns]
        log_step = [math.log(c.cell) if c.cell and c.kind == "number" else 0.0 for c in columns]
        buffers: dict[str, Any] = {
            "atoms": atoms,
            "log_conditional": conditionals,
            "cumulative": cumulative,
            "log_unseen": log_unseen,
            "log_step": log_step,
        }
        for name, values in buffers.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(values), dtype=torch.float64))
        indices: dict[str, Any] = {
            "atom_level": levels,
            "first_atom": first_atom,
            "missing_level": missing_level,
            "continuous_level": continuous_level,
        }
        for name, values in indices.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(values)))

    def encode(self, x: Tensor) -> LevelCodes:
        """The levels of rows (n, columns): NaN is a missing value, infinity one that the column cannot have."""
        index, is_atom = self._atom_index(x)
        missing = x.isnan()
        continuous = ~missing & ~is_atom & x.isfinite() & (self.continuous_level >= 0)
        level = self.atom_level.mT.gather(0, index)
        codes = torch.where(missing, self.missing_level, torch.where(continuous, self.continuous_level, level))
        unknown = (codes < 0) | ~(missing | continuous | is_atom)
        log_conditional = torch.where(is_atom, self.log_conditional.mT.gather(0, index), 0.0)
        discrete = ~continuous & ~missing
        log_within = torch.where(unknown, self.log_unseen, log_conditional) - self.log_step * discrete
        return LevelCodes(codes.masked_fill(unknown, 0), log_within.sum(1), unknown, continuous)

    def decode(self, codes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Values (n, columns) of levels, NaN if missing, and which of them the continuous part must provide.

        The generator draws one atom of those that share a level.
        """
        u = torch.rand(codes.shape, generator=generator, dtype=torch.float64).mT
        level = codes.mT.clamp(max=self.first_atom.shape[1] - 2)
        first, last = self.first_atom.gather(1, level), self.first_atom.gather(1, level + 1)
        low, high = self.cumulative.gather(1, first), self.cumulative.gather(1, last)
        index = torch.searchsorted(self.cumulative, torch.lerp(low, high, u), right=True) - 1
        index = index.clamp(first, (last - 1).clamp(first)).clamp(max=self.atoms.shape[1] - 1)
        x = self.atoms.gather(1, index).mT
        return torch.where(codes == self.missing_level, torch.nan, x), codes == self.continuous_level

    def _atom_index(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each value among its column's atoms, and whether the value is an atom."""
        finite = torch.where(x.isfinite(), x, 0.0).mT.contiguous()
        index = torch.searchsorted(self.atoms, finite).clamp(max=self.atoms.shape[1] - 1)
        is_atom = (self.atoms.gather(1, index) == finite).mT & x.isfinite()
        return index.mT, is_atom


def _group_atoms(masses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The level of each atom, and the atom's log-probability given its level; a level is a run of neighbours."""
    probabilities = np.asarray(masses, dtype=np.float64)
    count = len(probabilities)
    if count <= _MAX_LEVELS:
        return np.arange(count), np.zeros(count)
    frequent = np.zeros(count, dtype=bool)
    frequent[np.argsort(-probabilities, kind="stable")[: _MAX_LEVELS // 2]] = True
    # A frequent atom has a level of its own; runs of rare atoms between them are split at this probability.
    limit = probabilities[~frequent].sum() / (_MAX_LEVELS // 2)
    level, mass = np.zeros(count, dtype=np.int64), 0.0
    for i in range(count):
        new = i > 0 and (frequent[i] or frequent[i - 1] or mass + probabilities[i] > limit)
        mass = probabilities[i] if new or i == 0 else mass + probabilities[i]
        level[i] = level[i - 1] + new if i else 0
    totals = np.bincount(level, probabilities)
    return level, np.log(probabilities / totals[level])
