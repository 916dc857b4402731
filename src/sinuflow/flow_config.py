"""Checks of hyperparameters that flows and their layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from .checks import shortened
from .errors import ArgumentError

ImageConditioning = Literal["shift", "affine"]


def image_shape(shape: Any) -> tuple[int, int, int]:
    """(C, H, W) as integers, or an :class:`~sinuflow.ArgumentError`."""
    sizes = [int(n) for n in shape if hasattr(n, "__index__")] if isinstance(shape, (tuple, list, torch.Size)) else []
    if len(sizes) != 3 or len(shape) != 3 or min(sizes) < 1:
        raise ArgumentError(f"shape must be (channels, height, width), such as (1, 28, 28); got {shortened(shape)}")
    return sizes[0], sizes[1], sizes[2]


def check_residual(residual: bool, hidden: Sequence[int]) -> None:
    """Refuse residual blocks of different widths: they add a layer's input to its output."""
    if residual and len(set(hidden)) > 1:
        raise ArgumentError(f"residual=True needs hidden layers of one size; got hidden={tuple(hidden)}")
