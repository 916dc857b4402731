"""A baseline for image models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bijections.pixels import LEVELS


def histogram_bits(train: Tensor, test: Tensor) -> float:
    """Bits per dimension of images ``test`` under independent pixels with the histograms of ``train``.

    The histograms are smoothed by one additional count for every value.

    Example:
        >>> black = torch.zeros(256, 1, 2, 2, dtype=torch.uint8)
        >>> round(histogram_bits(black, black), 3)  # 257 of 512 counts are for black
        0.994
    """
    size = train[0].numel()
    first = torch.arange(size) * LEVELS  # the index of each pixel's first count
    counts = torch.ones(size * LEVELS, dtype=torch.float64)
    for part in train.flatten(1).split(1024):
        counts += torch.bincount((part + first).flatten(), minlength=len(counts))
    bits = -(counts / (len(train) + LEVELS)).log2()
    total = sum(float(bits[part + first].sum()) for part in test.flatten(1).split(1024))
    return total / test.numel() if test.numel() else math.nan
