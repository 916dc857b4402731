"""The layout of a flow's numbers for ordered substitution, as inverse.cu wants them.

Degrees are taken in groups. For the units of a group, the columns of earlier degrees are packed in tiles,
and those of the group itself are stored plainly, transposed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..degrees import below
from .layout import NetworkOffsets, gather, pack, places_of
from .shape import FlowShape, round_up

#: Units to a group: what is inside is done by single warps, what is before it by tensor cores.
_GROUP = 64


class InverseLayout(NamedTuple):
    """Indices for a whole flow; all are int32."""

    weights: Tensor  # what to gather for the tiles
    spans: Tensor
    size: int  # of one network, in groups of four numbers
    inner: Tensor  # what to gather for the weights inside the groups
    inner_size: int  # of one network
    most_inner: int  # of any group
    groups: Tensor
    pieces: Tensor
    ends: Tensor


def inverse_layout(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> InverseLayout:
    """The layout of a flow; ``zero`` is where a number is that is always zero."""
    layers = shape.plan.layers
    matrices = [places_of(layer) for layer in layers]
    tiles: list[tuple[int, Tensor]] = []  # the layer, and places in its matrix
    plain: list[tuple[int, Tensor]] = []
    spans, groups, pieces = list[list[int]](), list[list[int]](), list[list[int]]()
    packed = inside = most = 0
    for begin, end in _degree_groups(shape):
        first_span, first_inner = len(spans), inside
        for i, layer in enumerate(layers):
            head = i == len(layers) - 1
            row = shape.outputs * begin if head else below(layer.rows, begin)
            stop = shape.outputs * end if head else layer.rows[end - 1]
            # Of the features, those before the group are known; of the units, those of lower degrees.
            column = shape.context + begin if i == 0 else below(layer.columns, begin)
            last = shape.context + end - 1 if i == 0 else layer.columns[end - 1]
            packing = pack(matrices[i][row:stop, :column])
            tiles.append((i, packing.places))
            for t, (offset, first, final, _) in enumerate(packing.spans.tolist()):
                spans.append([packed + offset, first, final, i << 20 | (row + 16 * t)])
            packed += len(packing.places) // 128
            stride = round_up(max(1, stop - row), 4)
            part = torch.full((max(0, last - column), stride), -1)
            part[:, : stop - row] = matrices[i][row:stop, column:last].mT
            plain.append((i, part.flatten()))
            pieces.append([row, column, last - column, stride, inside - first_inner])
            inside += part.numel()
        groups.append([begin, end, first_span, len(spans), first_inner, inside - first_inner])
        most = max(most, inside - first_inner)
    ends = [[layer.rows[m] for m in range(shape.features)] for layer in layers]

    def index(parts: list[tuple[int, Tensor]]) -> Tensor:
        offsets = [tuple(network.weights[i] for i, _ in parts) for network in networks]
        return gather([places for _, places in parts], offsets, zero)

    def table(rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32)

    return InverseLayout(
        index(tiles), table(spans), 32 * packed, index(plain), inside, most, table(groups), table(pieces), table(ends)
    )


def _degree_groups(shape: FlowShape) -> list[tuple[int, int]]:
    each = -(-shape.hidden[0] // max(1, shape.features - (0 if shape.context else 1)))
    size = max(1, min(8, _GROUP // each))
    return [(begin, min(begin + size, shape.features)) for begin in range(0, shape.features, size)]
