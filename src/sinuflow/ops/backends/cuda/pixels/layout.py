"""The memory layout of a PixelCNN's parameters in the kernels.

Parameters are indexed one after the other: all weights (first convolution, three of every residual block, head), then
all biases. A layout holds these indices, and ``NONE`` where the kernels have a zero: masked weights and padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..shape import round_up
from .shape import FAR, FAR_PLACES, FAR_SIDE, NEAR_PLACES, PixelShape

if TYPE_CHECKING:
    from ...triton.pixelcnn import TritonShape

#: Marks a zero.
NONE = -1


def pixel_layout(shape: PixelShape, masks: Sequence[Tensor]) -> dict[str, Tensor]:
    """Indices of the parameters in each layout, concatenated over layers with these masks."""
    weights, _ = _indexed(masks)
    matrices, biases, _ = matrices_of(shape, masks)
    layouts = {
        "columns": [m.mT.flatten() for m in matrices],  # weights by columns, for float32
        "forward": [_fragments(m) for m in matrices],  # as fragments, for TF32 and float64
        "backward": [_fragments(m) for m in _transposed(weights, shape)],
        "matrices": [m.flatten() for m in matrices],  # by rows, for the inverse
        "biases": biases,
    }
    return {name: torch.cat(each) for name, each in layouts.items()}


def matrices_of(shape: PixelShape | TritonShape, masks: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], int]:
    """Every layer's matrix, with maps as rows and [place][map] as columns; biases; the number of parameters."""
    weights, count = _indexed(masks)
    matrices = [_matrix(w, shape, i, len(weights)) for i, w in enumerate(weights)]
    biases = []
    for i, (mask, matrix) in enumerate(zip(masks, matrices, strict=True)):
        groups = shape.groups if i == len(masks) - 1 else 1
        biases.append(_padded((torch.arange(len(mask)) + count).view(groups, -1), (groups, len(matrix) // groups)))
        count += len(mask)
    return matrices, [b.flatten() for b in biases], count


def _indexed(masks: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """The indices of all weights, in their shapes; and how many there are."""
    weights, count = [], 0
    for mask in masks:
        index = torch.arange(mask.numel()).view(mask.shape) + count
        weights.append(torch.where(mask.cpu() > 0, index, NONE))
        count += mask.numel()
    return weights, count


def _matrix(weight: Tensor, shape: PixelShape | TritonShape, layer: int, layers: int) -> Tensor:
    """A layer's matrix: rows are maps, columns [place][map]."""
    outputs, inputs = weight.shape[:2]
    if layer == 0:
        seen = weight.flatten(2)[:, :, :FAR_PLACES].transpose(1, 2).reshape(outputs, -1)
        return _padded(seen, (shape.wide, shape.columns))
    if layer == layers - 1:
        groups = weight.view(shape.groups, -1, inputs)
        return _padded(groups, (shape.groups, shape.head, shape.wide)).flatten(0, 1)
    kind = (layer - 1) % 3
    if kind == 1:
        seen = weight.flatten(2)[:, :, :NEAR_PLACES].transpose(1, 2)
        return _padded(seen, (shape.narrow, NEAR_PLACES, shape.narrow)).flatten(1)
    height, width = (shape.narrow, shape.wide) if kind == 0 else (shape.wide, shape.narrow)
    return _padded(weight.view(outputs, inputs), (height, width))


def _transposed(weights: list[Tensor], shape: PixelShape) -> list[Tensor]:
    """The matrices of the backward pass, in its order."""
    first, *blocks, head = weights
    matrices = [_padded(head.flatten(1).mT, (shape.wide, round_up(shape.heads, 8)))]
    for block in range(shape.blocks - 1, -1, -1):
        shrink, look, grow = blocks[3 * block : 3 * block + 3]
        matrices.append(_padded(grow.flatten(1).mT, (shape.narrow, shape.wide)))
        seen = look.flatten(2)[:, :, :NEAR_PLACES].permute(1, 2, 0)
        matrices.append(_padded(seen, (shape.narrow, NEAR_PLACES, shape.narrow)).flatten(1))
        matrices.append(_padded(shrink.flatten(1).mT, (shape.wide, shape.narrow)))
    for down in range(FAR + 1):  # the rows of the kernel, from the centre's up
        row = first[:, :, FAR - down].permute(2, 1, 0).reshape(FAR_SIDE * shape.channels, -1)
        matrices.append(_padded(row, (round_up(len(row), 16), shape.wide)))
    return matrices


def _padded(index: Tensor, shape: Sequence[int]) -> Tensor:
    padded = torch.full(tuple(shape), NONE)
    padded[tuple(slice(n) for n in index.shape)] = index
    return padded


def _fragments(matrix: Tensor) -> Tensor:
    """A matrix as fragments of a warp, for products of 16 rows by 8 columns: [step][rows][lane][4]."""
    lane, which = torch.arange(32).unsqueeze(1), torch.arange(4)
    row, column = lane // 4 + which % 2 * 8, lane % 4 + which // 2 * 4
    tiles = matrix.view(len(matrix) // 16, 16, -1, 8).permute(2, 0, 1, 3)
    return tiles[:, :, row, column].flatten()
