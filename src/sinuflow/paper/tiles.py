"""Many images in one picture, to be painted."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ..data.image_grid import grid_of


def tiles(images: Tensor, columns: int) -> np.ndarray[Any, Any]:
    """Images of bytes (N, C, H, W) in rows, with white lines between them: bytes of shape (height, width, 3).

    Example:
        >>> import torch
        >>> tiles(torch.zeros(5, 1, 32, 32, dtype=torch.uint8), columns=3).shape
        (66, 100, 3)
    """
    whole: np.ndarray[Any, Any] = grid_of(images, columns).expand(3, -1, -1).permute(1, 2, 0).numpy()
    return whole


def show(axes: Any, picture: np.ndarray[Any, Any], title: str = "") -> None:
    """Paint such a picture, each of its pixels as it is."""
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if title:
        axes.set_title(title)
