"""Layers of images that look trained, and what tests of them go through."""

from __future__ import annotations

import math

import pytest
import torch

from sinuflow.bijections.image import ImageAffine, ImageLDUBlock, ImageShift
from sinuflow.conditioners.pixelcnn import MaskedConvolution, PixelCNN
from sinuflow.ops.pixelcnn_fused import pixelcnn_outputs
from tests.builders import trained

DOUBLE = torch.float64
SHAPES = [(1, 6, 7), (3, 5, 4), (2, 9, 3), (1, 1, 8), (1, 8, 1), (4, 1, 1)]


def look_trained(bijection, seed=0, dtype=DOUBLE, head=0.3):
    """Drawn parameters: networks of unit gain that move a pixel by a few tenths, and waves as elsewhere."""
    trained(bijection, seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in bijection.modules():
            if isinstance(module, MaskedConvolution):
                fan_in = module.mask.sum((1, 2, 3), keepdim=True).clamp(min=1)
                weight = torch.randn(module.weight.shape, generator=generator, dtype=DOUBLE)
                module.weight.copy_(math.sqrt(2) * weight / fan_in.sqrt())
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=generator, dtype=DOUBLE))
        for module in bijection.modules():
            if isinstance(module, PixelCNN):
                module.head.weight.mul_(head)
                module.head.weight[module.shape[0] :].mul_(0.3)  # log-scales of a tenth or two
    return bijection


def build(kind, shape, context=0, dtype=DOUBLE, **options):
    makers = {
        "lower": lambda: ImageShift(shape, context, reverse=False, channels=5, **options),
        "upper": lambda: ImageShift(shape, context, reverse=True, channels=5, **options),
        "ldu": lambda: ImageLDUBlock(shape, context, scales=2, waves=2, channels=5, **options),
        "lower affine": lambda: ImageAffine(shape, context, reverse=False, channels=5, **options),
        "upper affine": lambda: ImageAffine(shape, context, reverse=True, channels=5, **options),
        "affine ldu": lambda: ImageLDUBlock(
            shape, context, scales=2, waves=2, channels=5, conditioning="affine", **options
        ),
    }
    return look_trained(makers[kind](), dtype=dtype)


def outputs(layer, x):
    """x + c(x), and below it the free log-scales, feature-major."""
    return pixelcnn_outputs(layer.conditioner.network(), x, None, layer.reverse)


def raster(shape) -> torch.Tensor:
    """The flattened features in raster order: rows, columns, channels."""
    return torch.arange(math.prod(shape)).view(shape).permute(1, 2, 0).flatten()


SINGLE = ["lower", "upper", "lower affine", "upper affine"]
every_kind = pytest.mark.parametrize("kind", [*SINGLE, "ldu", "affine ldu"])
every_single_kind = pytest.mark.parametrize("kind", SINGLE)
every_shape = pytest.mark.parametrize("shape", SHAPES)
with_and_without_context = pytest.mark.parametrize("context", [0, 2])
