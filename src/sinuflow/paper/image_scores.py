"""Bits per dimension of images, by a flow and by counting."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..data.image_sets import Bytes
from .image_flows import ImageFlow

#: Images that are scored at once, and images that are scored in float64 too.
_AT_ONCE, _CHECKED = 250, 500


class Bits(NamedTuple):
    """Mean bits per dimension, its standard error over images, and the error of float32: largest and mean, of some."""

    mean: float
    error: float
    float_max: float
    float_mean: float


def score_images(flow: ImageFlow, images: Bytes, device: str) -> Bits:
    """Bits per dimension of all images, by the exact density of pixels; some of them in float64 beside."""
    x = flow.logits(torch.from_numpy(images))
    found, exact = bits_of(flow, x, device), bits_of(flow, x[:_CHECKED].double(), device)
    off = (found[:_CHECKED] - exact).abs()
    error = float(found.std()) / len(found) ** 0.5
    return Bits(float(found.mean()), error, float(off.max()), float(off.mean()))


@torch.no_grad()
def bits_of(flow: ImageFlow, x: Tensor, device: str) -> Tensor:
    """Bits per dimension of each of what :meth:`ImageFlow.logits` gives, in the precision of ``x``.

    Only what is left to do for the pixels is always done in float64.
    """
    with flow.on(device, x.dtype) as model:
        parts = [model().log_prob(part.to(device)).double().cpu() for part in x.split(_AT_ONCE)]
    return flow.pixels.bits_per_dimension(torch.cat(parts), x.double())
