"""A grid of images as one image."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

#: Small images are enlarged by a whole factor to about this height.
_HEIGHT = 32
#: Pixels between images, and their value.
_GAP, _WHITE = 2, 255


def grid_of(images: Tensor, columns: int | None = None) -> Tensor:
    """Images of bytes (N, C, H, W), row by row, as one image (C, H', W').

    Without ``columns``, the grid is about square.

    Example:
        >>> import torch
        >>> grid_of(torch.zeros(6, 1, 32, 32, dtype=torch.uint8), columns=3).shape
        torch.Size([1, 66, 100])
    """
    count = len(images)
    columns = math.ceil(math.sqrt(count)) if columns is None else min(columns, count)
    rows = math.ceil(count / columns)
    times = max(1, round(_HEIGHT / images.shape[2]))
    large = images.repeat_interleave(times, 2).repeat_interleave(times, 3)
    tiles = F.pad(large, (0, _GAP, 0, _GAP, 0, 0, 0, rows * columns - count), value=_WHITE)
    _, channels, height, width = tiles.shape
    grid = tiles.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * height, columns * width)[:, :-_GAP, :-_GAP]
