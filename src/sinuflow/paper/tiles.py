"""Many images as one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def tiles(images: Tensor, columns: int, gap: int = 1) -> np.ndarray[Any, Any]:
    """Images of bytes (N, C, H, W) in rows, with white lines between them: bytes of shape (height, width, 3).

    Grey images are shown in grey; a row that is not full ends in white.

    Example:
        >>> tiles(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), columns=3).shape
        (17, 26, 3)
    """
    images = images.expand(-1, 3, -1, -1)
    rows = -(-len(images) // columns)
    white = images.new_full((rows * columns - len(images), *images.shape[1:]), 255)
    framed = F.pad(torch.cat([images, white]), (0, gap, 0, gap), value=255)
    _, channels, height, width = framed.shape
    table = framed.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    whole: np.ndarray[Any, Any] = table.reshape(rows * height, columns * width, channels).numpy()
    return whole[:-gap, :-gap] if gap else whole


def show(axes: Any, picture: np.ndarray[Any, Any], title: str = "") -> None:
    """Paint such a picture, each of its pixels as it is."""
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if title:
        axes.set_title(title)
