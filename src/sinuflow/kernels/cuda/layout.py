"""Where every number of a flow's networks goes, as the kernels want it.

The kernels take matrices in tiles of 16 rows by 8 columns, each as 128 numbers in the order of the lanes of
a warp (see common.cuh), without the tiles that the mask empties. So packing is one gather from the
parameters of the flow, all of them one after the other, with an index that is computed once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..degrees import Layer
from .shape import FlowShape, round_up

#: Rows and columns of the part of a weight gradient that one block computes.
GRADIENT_TILE = 64


class Packing(NamedTuple):
    """One network's matrices in tiles."""

    places: Tensor  # among the matrix's own numbers, -1 for a zero
    spans: Tensor  # for every row of tiles: offset, first and last column of tiles, (tiles, 4), int32


class NetworkOffsets(NamedTuple):
    """Where a network's numbers begin among the parameters of the flow: hidden layers, then the head."""

    weights: tuple[int, ...]
    biases: tuple[int, ...]


class Layout(NamedTuple):
    """Indices for a whole flow; all are int32."""

    forward: Tensor  # what to gather for the matrices
    forward_spans: Tensor
    forward_size: int  # of one network, in groups of four numbers
    backward: Tensor  # the same for the transposed matrices
    backward_spans: Tensor
    backward_size: int
    biases: Tensor
    jobs: Tensor  # tiles of weight gradients: layer, row, column, unused
    reach: Tensor  # of every row of every layer, one after the other


def layout(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Layout:
    """The layout of a flow; ``zero`` is where a number is that is always zero."""
    layers = shape.plan.layers
    forward = [_pack(layer, transposed=False) for layer in layers]
    # The backward pass goes from the head down.
    backward = [_pack(layer, transposed=True) for layer in reversed(layers)]
    return Layout(
        gather([p.places for p in forward], [n.weights for n in networks], zero),
        _joined_spans(forward),
        sum(len(p.places) for p in forward) // 4,
        gather([p.places for p in backward], [n.weights[::-1] for n in networks], zero),
        _joined_spans(backward),
        sum(len(p.places) for p in backward) // 4,
        _biases(shape, networks, zero),
        _jobs(layers),
        torch.cat([torch.tensor(layer.reach, dtype=torch.int32) for layer in layers]),
    )


def places_of(layer: Layer) -> Tensor:
    """Where each number of a matrix is among them, -1 where it is masked."""
    rows, columns = len(layer.reach), layer.columns[-1]
    places = torch.arange(rows * columns).view(rows, columns)
    return torch.where(torch.arange(columns) < torch.tensor(layer.reach).unsqueeze(-1), places, -1)


def _pack(layer: Layer, transposed: bool) -> Packing:
    places = places_of(layer)
    return pack(places.mT if transposed else places)


def pack(matrix: Tensor) -> Packing:
    """A matrix of places in tiles; it may be empty."""
    rows, columns = matrix.shape
    if columns == 0:
        return Packing(matrix.new_empty(0), torch.zeros((-(-rows // 16), 4), dtype=torch.int32))
    whole = torch.full((round_up(rows, 16), round_up(columns, 8)), -1)
    whole[:rows, :columns] = matrix
    # (row of tiles, half, group, column of tiles, half, member) to the order of a warp's lanes.
    tiles = whole.view(-1, 2, 8, whole.shape[1] // 8, 2, 4).permute(0, 3, 2, 5, 4, 1).flatten(2)
    parts, spans, offset = [], [], 0
    for row in tiles:
        used = (row >= 0).any(1).nonzero().flatten()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        parts.append(row[first:end].flatten())
        spans.append([offset, first, end, 0])
        offset += end - first
    return Packing(torch.cat([matrix.new_empty(0), *parts]), torch.tensor(spans, dtype=torch.int32).view(-1, 4))


def _joined_spans(packings: list[Packing]) -> Tensor:
    """The spans of all matrices, their offsets counted from the beginning of the network."""
    joined, before = [], 0
    for packing in packings:
        spans = packing.spans.clone()
        spans[:, 0] += before
        joined.append(spans)
        before += len(packing.places) // 128
    return torch.cat(joined)


def gather(parts: list[Tensor], offsets: list[tuple[int, ...]], zero: int) -> Tensor:
    """An index into all parameters, network by network, from places in the matrices of one."""
    found = [
        torch.where(places < 0, zero, places + offset)
        for network in offsets
        for places, offset in zip(parts, network, strict=True)
    ]
    return torch.cat(found).to(torch.int32)


def _biases(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Tensor:
    index = torch.full((len(networks), shape.biases), zero, dtype=torch.int32)
    for row, network in zip(index, networks, strict=True):
        for i, offset in enumerate(network.biases):
            count = shape.hidden[0] if i < len(shape.hidden) else shape.features * shape.outputs
            start = i * shape.units
            row[start : start + count] = offset + torch.arange(count, dtype=torch.int32)
    return index


def _jobs(layers: tuple[Layer, ...]) -> Tensor:
    """The tiles of the gradients of one network's matrices that are not masked altogether; the largest first."""
    jobs = []
    for i, layer in enumerate(layers):
        for row in range(0, len(layer.reach), GRADIENT_TILE):
            reach = layer.reach[min(row + GRADIENT_TILE, len(layer.reach)) - 1]
            # The first tile of a row is there in any case: it gives the gradient of the bias.
            jobs += [[i, row, column, 0] for column in range(0, max(1, reach), GRADIENT_TILE)]
    return torch.tensor(jobs, dtype=torch.int32)
