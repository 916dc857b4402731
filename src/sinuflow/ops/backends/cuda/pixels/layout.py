"""Where the numbers of a PixelCNN go: from its parameters to the kernels, and from their gradients back.

Parameters are counted one after the other: all weights (of the first convolution, of every bottleneck's three, of the
head), then all biases in the same order. A matrix of such numbers says which parameter is where; what is
masked, or added to fill a tile, is none of them, ``NONE``: there the kernels have 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .shape import FAR, FAR_PLACES, FAR_SIDE, NEAR_PLACES, PixelShape

#: No parameter at all.
NONE = -1


class Padded(Protocol):
    """How many maps there are, with those that fill a tile."""

    @property
    def narrow(self) -> int: ...
    @property
    def wide(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def groups(self) -> int:
        """Of the head's rows, each of which is filled by itself."""


class PixelLayout(NamedTuple):
    """Which parameter every number of the kernels' is, or whose gradient."""

    columns: Tensor  # weights of the exact kernels
    forward: Tensor  # weights of pixel_learn, by tensor cores, and of the fine kernels
    backward: Tensor  # weights of pixel_backward
    matrices: Tensor  # weights of pixel_inverse and pixel_fine_inverse
    biases: Tensor
    parts: Tensor  # for every number that an image contributes to the gradients, to which
    parameters: int  # how many there are


def pixel_layout(shape: PixelShape, masks: Sequence[Tensor]) -> PixelLayout:
    """The layout for weights with these masks, in the order of the layers."""
    weights, _ = _numbered(masks)
    matrices, biases, parameters = matrices_of(shape, masks)
    columns = torch.cat([m.mT.flatten() for m in matrices])
    forward = torch.cat([_fragments(m) for m in matrices])
    backward = torch.cat([_fragments(m) for m in _transposed(weights, shape)])
    plain, all_biases = torch.cat([m.flatten() for m in matrices]), torch.cat(biases)
    return PixelLayout(columns, forward, backward, plain, all_biases, torch.cat([plain, all_biases]), parameters)


def matrices_of(shape: Padded, masks: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], int]:
    """Every layer's matrix, whose rows are maps and whose columns are [place][map]; biases; how many parameters."""
    weights, count = _numbered(masks)
    matrices = [_matrix(w, shape, i, len(weights)) for i, w in enumerate(weights)]
    biases = []
    for i, (mask, matrix) in enumerate(zip(masks, matrices, strict=True)):
        groups = shape.groups if i == len(masks) - 1 else 1
        biases.append(_filled((torch.arange(len(mask)) + count).view(groups, -1), (groups, len(matrix) // groups)))
        count += len(mask)
    return matrices, [b.flatten() for b in biases], count


def _numbered(masks: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """The numbers of all weights, as the weights are; and how many there are."""
    weights, count = [], 0
    for mask in masks:
        numbers = torch.arange(mask.numel()).view(mask.shape) + count
        weights.append(torch.where(mask.cpu() > 0, numbers, NONE))
        count += mask.numel()
    return weights, count


def _matrix(weight: Tensor, shape: Padded, layer: int, layers: int) -> Tensor:
    """A layer's matrix: rows are maps, columns are [place][map]."""
    outputs, inputs = weight.shape[:2]
    if layer == 0:
        seen = weight.flatten(2)[:, :, :FAR_PLACES].transpose(1, 2).reshape(outputs, -1)
        return _filled(seen, (shape.wide, shape.columns))
    if layer == layers - 1:
        groups = weight.view(shape.groups, -1, inputs)
        return _filled(groups, (shape.groups, shape.head, shape.wide)).flatten(0, 1)
    kind = (layer - 1) % 3
    if kind == 1:
        seen = weight.flatten(2)[:, :, :NEAR_PLACES].transpose(1, 2)
        return _filled(seen, (shape.narrow, NEAR_PLACES, shape.narrow)).flatten(1)
    height, width = (shape.narrow, shape.wide) if kind == 0 else (shape.wide, shape.narrow)
    return _filled(weight.view(outputs, inputs), (height, width))


def _transposed(weights: list[Tensor], shape: PixelShape) -> list[Tensor]:
    """The matrices of the backward pass, in its order."""
    first, *blocks, head = weights
    found = [_filled(head.flatten(1).mT, (shape.wide, -(-shape.heads // 8) * 8))]
    for block in range(shape.blocks - 1, -1, -1):
        shrink, look, grow = blocks[3 * block : 3 * block + 3]
        found.append(_filled(grow.flatten(1).mT, (shape.narrow, shape.wide)))
        seen = look.flatten(2)[:, :, :NEAR_PLACES].permute(1, 2, 0)
        found.append(_filled(seen, (shape.narrow, NEAR_PLACES, shape.narrow)).flatten(1))
        found.append(_filled(shrink.flatten(1).mT, (shape.wide, shape.narrow)))
    for down in range(FAR + 1):  # the rows of the kernel, from the centre's up
        row = first[:, :, FAR - down].permute(2, 1, 0).reshape(FAR_SIDE * shape.channels, -1)
        found.append(_filled(row, (shape.stripe, shape.wide)))
    return found


def _filled(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    found = torch.full(tuple(shape), NONE)
    found[tuple(slice(n) for n in numbers.shape)] = numbers
    return found


def _fragments(matrix: Tensor) -> Tensor:
    """A matrix as the lanes of a warp want it for products of 16 rows by 8 columns: [step][rows][lane][4]."""
    lane, which = torch.arange(32).unsqueeze(1), torch.arange(4)
    row, column = lane // 4 + which % 2 * 8, lane % 4 + which // 2 * 4
    tiles = matrix.view(len(matrix) // 16, 16, -1, 8).permute(2, 0, 1, 3)
    return tiles[:, :, row, column].flatten()
