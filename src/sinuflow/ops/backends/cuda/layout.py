"""Biases and weight gradients: where each number is among the parameters of the flow."""

from __future__ import annotations

import torch
from torch import Tensor

from ...degrees import Layer
from .shape import FlowShape
from .streams import NetworkOffsets

#: Rows and columns of the part of a weight gradient that one block computes.
GRADIENT_TILE = 64


def bias_index(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Tensor:
    """What to gather for the biases of all networks, (networks, biases); ``zero`` is where a zero is."""
    index = torch.full((len(networks), shape.biases), zero, dtype=torch.int32)
    for row, network in zip(index, networks, strict=True):
        for i, offset in enumerate(network.biases):
            count = shape.hidden[0] if i < len(shape.hidden) else shape.features * shape.outputs
            start = i * shape.units
            row[start : start + count] = offset + torch.arange(count, dtype=torch.int32)
    return index


def gradient_jobs(layers: tuple[Layer, ...]) -> Tensor:
    """The tiles of the gradients of one network's matrices that are not masked altogether."""
    jobs = []
    for i, layer in enumerate(layers):
        for row in range(0, len(layer.reach), GRADIENT_TILE):
            reach = layer.reach[min(row + GRADIENT_TILE, len(layer.reach)) - 1]
            # The first tile of a row is there in any case: it gives the gradient of the bias.
            jobs += [[i, row, column, 0] for column in range(0, max(1, reach), GRADIENT_TILE)]
    return torch.tensor(jobs, dtype=torch.int32)
