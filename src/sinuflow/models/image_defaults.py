"""What the size of images says about the flow that is learned of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import ArgumentError
from ..flow_config import ImageConditioning

Size = Literal["auto", "small", "paper"]

#: Numbers in an image for which a small flow is enough.
_FEW = 256


@dataclass(frozen=True)
class Recipe:
    """A flow's architecture and how it is trained."""

    architecture: dict[str, Any]
    training: dict[str, Any]


def recipe(
    shape: Sequence[int], size: Size = "auto", gpu: bool = False, conditioning: ImageConditioning | None = None
) -> Recipe:
    """The defaults for images of a shape (C, H, W).

    ``"paper"`` is the paper's flow, which wants a GPU; ``"small"`` is one that a CPU trains in minutes, and whose
    networks compute scales too, unless another ``conditioning`` is given. ``"auto"`` takes the paper's on a GPU, but
    not for images of a few pixels.

    Example:
        >>> recipe((1, 8, 8)).architecture["blocks"], recipe((3, 32, 32), gpu=True).architecture["blocks"]
        (4, 12)
    """
    if size not in get_args(Size):
        raise ArgumentError(f"size must be one of {', '.join(get_args(Size))}; got {size!r}")
    if size == "auto":
        size = "paper" if gpu and math.prod(shape) > _FEW else "small"
    channels = max(16 if size == "paper" else 8, 4 * shape[0])  # every channel of the image has feature maps of its own
    conditioning = conditioning or ("shift" if size == "paper" else "affine")
    architecture: dict[str, Any] = {"channels": channels, "conditioning": conditioning}
    training: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 1e-2, "schedule": "cosine", "patience": 20}
    if size == "paper":
        architecture |= {"blocks": 12, "scales": 4, "waves": 4, "residual_blocks": 2}
        training |= {"steps": 40_000, "batch_size": 128, "learning_rate": 1e-3, "ema": 0.999}
    else:
        architecture |= {"blocks": 4, "scales": 2, "waves": 4, "residual_blocks": 1}
        training |= {"steps": 2_000, "batch_size": 64, "learning_rate": 5e-3, "ema": 0.99}
    return Recipe(architecture, training)
