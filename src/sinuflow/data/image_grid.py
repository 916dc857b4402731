"""Many images as one picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Images are enlarged, by whole pixels, until they are about this high.
_HEIGHT = 32
#: Pixels between images, and their value.
_GAP, _WHITE = 2, 255


def grid_of(images: Tensor, columns: int | None = None) -> Tensor:
    """Images of bytes (N, C, H, W), row by row, as one picture (C, H', W').

    Small images are enlarged, so that they can be seen. Without ``columns``, the grid is about square.

    Example:
        >>> grid_of(torch.zeros(6, 1, 32, 32, dtype=torch.uint8), columns=3).shape
        torch.Size([1, 66, 100])
    """
    count, channels, height, _ = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else min(columns, count)
    rows = math.ceil(count / columns)
    times = max(1, round(_HEIGHT / height))
    large = images.repeat_interleave(times, 2).repeat_interleave(times, 3)
    height, width = large.shape[2:]
    picture = torch.full((channels, rows, height + _GAP, columns, width + _GAP), _WHITE, dtype=torch.uint8)
    for i, image in enumerate(large):
        picture[:, i // columns, :height, i % columns, :width] = image
    whole = picture.view(channels, rows * (height + _GAP), columns * (width + _GAP))
    return whole[:, :-_GAP, :-_GAP]  # gaps are between images only
