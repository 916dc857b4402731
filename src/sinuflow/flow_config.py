"""Checks of hyperparameters that flows and their layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from .checks import choice, shortened
from .errors import ArgumentError

ImageConditioning = Literal["shift", "affine"]

#: The hidden layers of the network that maps a context to the waves of a sinusoidal layer.
CONTEXT_HIDDEN = (64,)


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


def check_channels(channels: int, colours: int) -> None:
    """Refuse fewer feature maps than image channels: each channel needs its own."""
    if channels < colours:
        raise ArgumentError(
            f"channels must be at least {colours}, the number of channels of the image, so that each of them "
            f"has feature maps; got {channels}"
        )


def check_image_conditioning(conditioning: Any) -> None:
    """Refuse a conditioning that image flows do not have."""
    choice("conditioning of images", conditioning, get_args(ImageConditioning))
