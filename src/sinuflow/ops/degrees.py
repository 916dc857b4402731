"""Degrees, which determine the masks of a masked network.

Feature i, counted from 1, has degree i, and the context has degree 0. A hidden unit of degree m depends on inputs of
degree m or less; the outputs for feature i depend on degrees below i. Units are sorted by degree in every layer, so
that masks are staircases: row r of a matrix has its first ``reach[r]`` columns unmasked, and reach never decreases.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Stair(NamedTuple):
    """Rows ``start:stop`` of the matrix are zero from column ``columns`` on."""

    start: int
    stop: int
    columns: int


class Staircase(NamedTuple):
    """A staircase mask in blocks; ``exact`` if nothing is masked inside the blocks."""

    steps: tuple[Stair, ...]
    exact: bool


def staircase(reach: Sequence[int], columns: int, least: int = 48) -> Staircase:
    """Group rows, of which row r has its first ``reach[r]`` columns unmasked, into a few blocks.

    ``reach`` must not decrease. More blocks skip more of the matrix, but small products are slow:
    a block has at least ``least`` rows, and a matrix of few columns is a single block.

    Example:
        >>> staircase([1, 1, 2, 2, 3], columns=3, least=2)
        Staircase(steps=(Stair(start=0, stop=2, columns=1), Stair(start=2, stop=5, columns=3)), exact=False)
    """
    least = max(least, -(-len(reach) // 8)) if columns >= least else len(reach)
    edges = [r for r in range(1, len(reach)) if reach[r] != reach[r - 1]]
    starts = [0]
    for edge in edges:
        if edge - starts[-1] >= least and len(reach) - edge >= least:
            starts.append(edge)
    stops = [*starts[1:], len(reach)]
    steps = tuple(Stair(start, stop, reach[stop - 1]) for start, stop in zip(starts, stops, strict=True))
    return Staircase(steps, all(reach[start] == reach[stop - 1] for start, stop, _ in steps))


def staircase_mask(reach: Sequence[int], columns: int) -> Tensor:
    """The mask as a boolean matrix: row r has ones up to column ``reach[r]``."""
    mask = torch.empty(len(reach), columns, dtype=torch.bool)  # loading limits the size of empty tensors
    return torch.lt(torch.arange(columns), torch.tensor(reach).unsqueeze(-1), out=mask)


@dataclass(frozen=True)
class Layer:
    """One masked matrix, described by the degrees of its rows and columns."""

    rows: tuple[int, ...]  # rows[m]: the number of rows of degree m or less
    columns: tuple[int, ...]  # columns[m]: the number of columns of degree m or less
    reach: tuple[int, ...]  # reach[r]: the number of unmasked columns of row r
    stairs: Staircase


class Piece(NamedTuple):
    """A block of a layer's matrix."""

    layer: int
    rows: slice
    columns: slice


class DegreeBlock(NamedTuple):
    """Consecutive degrees, which ordered substitution processes together."""

    degrees: range
    known: list[Piece]  # of every layer, the rows of the block and the columns of earlier blocks
    fresh: list[list[Piece]]  # for every degree, its rows and the columns that this block has computed by then
    begun: list[bool]  # for every layer, whether it has a piece in ``known``, which writes its rows first


#: The number of degrees per block.
_BLOCK = 8


@dataclass(frozen=True)
class Plan:
    """A masked network's layers: the hidden ones, then the head."""

    features: int
    context: int
    outputs: int  # per feature; 0 if they differ
    hidden: tuple[Layer, ...]
    head: Layer

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.hidden, self.head)

    @cached_property
    def blocks(self) -> list[DegreeBlock]:
        """The order of ordered substitution."""
        blocks = []
        for first in range(0, self.features, _BLOCK):
            degrees = range(first, min(first + _BLOCK, self.features))
            block = DegreeBlock(degrees, known=[], fresh=[[] for _ in degrees], begun=[])
            for i, layer in enumerate(self.layers):
                # When the block begins, inputs of degree `first` are known, but only hidden units of lower degrees.
                done = layer.columns[first] if i == 0 else below(layer.columns, first)
                block.begun.append(done > 0)
                if done:
                    rows = slice(below(layer.rows, first), layer.rows[degrees[-1]])
                    block.known.append(Piece(i, rows, slice(0, done)))
                for m, pieces in zip(degrees, block.fresh, strict=True):
                    rows = slice(below(layer.rows, m), layer.rows[m])
                    if rows.start < rows.stop:
                        pieces.append(Piece(i, rows, slice(done, layer.columns[m])))
            blocks.append(block)
        return blocks


def below(counts: tuple[int, ...], degree: int) -> int:
    """The number of units below a degree, from ``counts[m]``, the number of units of degree m or less."""
    return counts[degree - 1] if degree else 0


def hidden_degrees(features: int, context: int, width: int) -> list[int]:
    """Sorted degrees, spread evenly over those that occur in the output's dependencies.

    Example:
        >>> hidden_degrees(4, 0, 6), hidden_degrees(3, 2, 6)
        ([1, 1, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2])
    """
    lowest = 0 if context else 1
    count = max(1, features - lowest)
    if width >= count:
        # Groups of a multiple of 16 units multiply faster, if they are that large at all.
        grain = 16 if width >= 32 * count else 1
        edges = [grain * round(m * width / (grain * count)) for m in range(1, count)]
        return [lowest + bisect_right(edges, j) for j in range(width)]
    return [lowest + round(j * (count - 1) / max(1, width - 1)) for j in range(width)]


@lru_cache(maxsize=256)
def plan(features: int, context: int, outputs: int, hidden: tuple[int, ...]) -> Plan:
    """The layers of a network from (context, features) over ``hidden`` units to features × outputs."""
    return grouped_plan((1,) * features, context, (outputs,) * features, hidden)


def grouped_plan(inputs: tuple[int, ...], context: int, outputs: tuple[int, ...], hidden: tuple[int, ...]) -> Plan:
    """The layers of a network in which feature i has ``inputs[i]`` columns and ``outputs[i]`` rows.

    Example:
        >>> grouped = grouped_plan((2, 3), context=0, outputs=(2, 3), hidden=(4,))
        >>> grouped.hidden[0].reach, grouped.head.reach
        ((2, 2, 2, 2), (0, 0, 4, 4, 4))
    """
    features = len(inputs)
    below = [0] * context + [i + 1 for i, size in enumerate(inputs) for _ in range(size)]
    columns = tuple(bisect_right(below, m) for m in range(features + 1))
    layers = []
    for degrees in (
        *(hidden_degrees(features, context, width) for width in hidden),
        [i for i, size in enumerate(outputs) for _ in range(size)],
    ):
        rows = tuple(bisect_right(degrees, m) for m in range(features + 1))
        reach = tuple(columns[degree] for degree in degrees)
        layers.append(Layer(rows, columns, reach, staircase(reach, columns[-1])))
        columns = rows
    per_feature = outputs[0] if len(set(outputs)) == 1 else 0
    return Plan(features, context, per_feature, tuple(layers[:-1]), layers[-1])
