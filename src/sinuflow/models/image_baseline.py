"""What a model of images has to beat."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bijections.pixels import LEVELS


def histogram_bits(train: Tensor, test: Tensor) -> float:
    """Bits per dimension of images ``test`` if every pixel is by itself, and has the histogram of ``train``.

    Every value is counted once more than it was seen, so that none is impossible.

    Example:
        >>> black = torch.zeros(256, 1, 2, 2, dtype=torch.uint8)
        >>> round(histogram_bits(black, black), 3)  # 257 of 512 counts are for black
        0.994
    """
    size = train[0].numel()
    first = torch.arange(size) * LEVELS  # of each pixel's own counts
    counts = torch.ones(size * LEVELS, dtype=torch.float64)
    for part in train.flatten(1).split(1024):
        counts += torch.bincount((part + first).flatten(), minlength=len(counts))
    bits = -(counts / (len(train) + LEVELS)).log2()
    total = sum(float(bits[part + first].sum()) for part in test.flatten(1).split(1024))
    return total / test.numel() if test.numel() else math.nan
