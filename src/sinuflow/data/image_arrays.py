"""Arrays that are images of bytes, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

#: More channels than this are taken for a mistake in the order of the axes, if the last axis could be channels.
_CHANNELS = 4


def as_images(data: Any, name: str = "images") -> Tensor:
    """Images as a tensor of bytes (N, C, H, W), from a tensor or an array; (N, H, W) are greyscale images.

    Example:
        >>> as_images(np.zeros((5, 8, 8), dtype=np.uint8)).shape
        torch.Size([5, 1, 8, 8])
    """
    array = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    if array.dtype != np.uint8:
        raise DataError(f"{name} must hold bytes, dtype uint8 with values from 0 to 255; got {_described(array)}")
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        raise DataError(
            f"{name} must have shape (N, C, H, W), or (N, H, W) if they are greyscale; got {tuple(array.shape)}"
        )
    if not len(array):
        raise DataError(f"{name} holds no images")
    if array.ndim == 4 and array.shape[1] > _CHANNELS >= array.shape[3]:
        raise DataError(
            f"{name} must have shape (N, C, H, W), with the channels before the pixels; got {tuple(array.shape)}: "
            "numpy.moveaxis(images, -1, 1) puts them there"
        )
    images = torch.from_numpy(np.array(array))  # a copy: files may be read-only, and arrays change
    return images.unsqueeze(1) if images.dim() == 3 else images


def _described(array: Any) -> str:
    """The dtype and the range of values, and how to come to bytes."""
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.iscomplexobj(array) or not array.size:
        return str(array.dtype)
    low, high = array.min(), array.max()
    found = f"{array.dtype} from {low:g} to {high:g}"
    if low >= 0 and high <= 1:
        return f"{found}: multiply by 255, round, and convert with .astype('uint8')"
    if low >= 0 and high <= 255:
        return f"{found}: round, and convert with .astype('uint8')"
    return f"{found}: bring the values to that range first"
