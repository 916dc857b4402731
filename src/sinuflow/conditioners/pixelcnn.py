"""PixelCNN: a masked network whose outputs for a pixel depend on the pixels before it alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..ops.pixel_affine import scaled
from ..ops.pixelcnn import PixelWeights, pixel_network
from ..ops.pixelcnn_fused import (
    Network,
    from_images,
    fused_inverse,
    inverse_kernels,
    pixelcnn_outputs,
    reference_outputs,
    to_images,
)
from ..ops.pixelcnn_inverse import ActiveUnits, PixelNetwork, certified, incremental, pixelcnn_adjoint
from ..registry import register
from ..solvers import Inversion, SolverOptions, Step
from ..transformers import Transformer
from ..transformers.base import vector_jacobian
from .base import Conditioner, Local, Masked

Shape = tuple[int, int, int]


class MaskedConvolution(Masked):
    r"""The parameters of a convolution :math:`(M \odot W) * h + b` that sees nothing after the centre, in raster order.

    Every map, of inputs and outputs, belongs to one of the image's ``channels``, spread evenly; output maps in
    ``groups`` that are each spread over all channels. At the centre, a map of channel g sees the channels below g
    (kind ``"A"``), or up to g (kind ``"B"``). Places before the centre are seen whole. The kernel's rows below the
    centre are not stored.
    """

    def __init__(
        self, kind: str, channels: int, inputs: int, outputs: int, reach: int, zero: bool = False, groups: int = 1
    ) -> None:
        of_output = owners(outputs // groups, channels).repeat(groups).unsqueeze(1)
        of_input = owners(inputs, channels)
        mask = torch.ones(outputs, inputs, reach + 1, 2 * reach + 1)
        mask[:, :, reach, reach] = (of_input < of_output) if kind == "A" else (of_input <= of_output)
        mask[:, :, reach, reach + 1 :] = 0
        super().__init__(mask, 0 if zero else inputs * ((reach + 1) * (2 * reach + 1) - reach))


class ResidualBlock(nn.Module):
    r"""The parameters of a bottleneck, :math:`h + W_3 f(W_2 * f(W_1 f(h)) + V k)`, with f = relu and the context k."""

    def __init__(self, channels: int, maps: int, context: int) -> None:
        super().__init__()
        self.shrink = MaskedConvolution("B", channels, 2 * maps, maps, reach=0)
        self.look = MaskedConvolution("B", channels, maps, maps, reach=1)
        self.grow = MaskedConvolution("B", channels, maps, 2 * maps, reach=0)
        self.given = nn.Linear(context, maps, bias=False) if context else None


@register
class PixelCNN(Conditioner):
    r"""A small PixelCNN (van den Oord et al., 2016), as in the paper's image flows.

    It maps images, flattened as (C, H, W) to D = CHW features, to P = ``outputs`` parameters for every channel of every
    pixel: those for channel c of pixel (i, j) are functions of the pixels before (i, j) in raster order, of the
    channels before c of that pixel, and of the context. A 7x7 convolution to ``2 * channels`` feature maps is followed
    by ``residual_blocks`` bottlenecks with a 3x3 convolution over ``channels`` maps, and a 1x1 head that starts at
    zero. Linear maps of the context, without bias, are added to the maps of the first convolution and of the 3x3
    convolution of every block.

    Example:
        >>> network = PixelCNN(shape=(3, 8, 8), context=10)
        >>> network(torch.randn(192, 5), torch.randn(10, 5)).shape
        torch.Size([192, 1, 5])
    """

    def __init__(
        self, shape: Shape, context: int = 0, channels: int = 16, residual_blocks: int = 2, outputs: int = 1
    ) -> None:
        super().__init__(math.prod(shape), outputs, context)
        if channels < shape[0]:
            raise ArgumentError(
                f"channels must be at least {shape[0]}, the number of channels of the image, so that each of them "
                f"has feature maps; got {channels}"
            )
        if residual_blocks < 0:
            raise ArgumentError(f"residual_blocks must be at least 0; got {residual_blocks}")
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.channels = channels
        self.first = MaskedConvolution("A", shape[0], shape[0], 2 * channels, reach=3)
        self.given = nn.Linear(context, 2 * channels, bias=False) if context else None
        self.blocks = nn.ModuleList(ResidualBlock(shape[0], channels, context) for _ in range(residual_blocks))
        heads = outputs * shape[0]
        self.head = MaskedConvolution("B", shape[0], 2 * channels, heads, reach=0, zero=True, groups=outputs)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = pixel_network(to_images(x, self.shape), None if context is None else context.mT, self.weights())
        return from_images(h).view(self.outputs, self.features, -1).transpose(0, 1)

    def incremental(self, like: Tensor, context: Tensor | None = None) -> Iterator[Step]:
        rows = None if context is None else context.mT
        return incremental(PixelNetwork.of(self.shape, self.weights(), rows), like)

    def adjoint(self, x: Tensor, context: Tensor | None, grad: Tensor, local: Local) -> list[Tensor]:
        active: list[Tensor] = []
        with torch.enable_grad():
            given = [] if context is None else [context.detach().requires_grad_()]
            images, rows = to_images(x.detach(), self.shape), given[0].mT if given else None
            outputs = from_images(pixel_network(images, rows, self.weights(), active))
        masks = [(t.detach() > 0).flatten(2).permute(1, 2, 0).contiguous() for t in active]
        with torch.inference_mode():  # makes small operations about twice as fast
            pattern = ActiveUnits(masks[::3], masks[1::3], masks[2::3])
            grad_z, grad_h = pixelcnn_adjoint(PixelNetwork.of(self.shape, self.weights(), None), pattern, grad, local)
        flat = grad_h.clone().transpose(0, 1).reshape(outputs.shape)
        return [grad_z.clone(), *vector_jacobian([outputs], [*self.parameters(), *given], [flat])]

    def transform_with(
        self, transformer: Transformer, x: Tensor, context: Tensor | None, reverse: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        if transformer.kind not in ("shift", "affine"):
            return super().transform_with(transformer, x, context, reverse)
        z, ladj = scaled(pixelcnn_outputs(self.network(), x, context, reverse), len(x))
        return z, None if transformer.kind == "shift" else ladj

    def invert_with(
        self, transformer: Transformer, z: Tensor, context: Tensor | None, options: SolverOptions
    ) -> Inversion:
        if transformer.kind not in ("shift", "affine"):
            return super().invert_with(transformer, z, context, options)
        kernels = inverse_kernels(self.network(), z)
        if kernels is not None:
            return certified(z, *fused_inverse(kernels, z, context, self.weights()), torch.float32)
        x = super().invert_with(transformer, z, context, options).x
        active: list[Tensor] = []
        with torch.inference_mode():
            outputs = reference_outputs(x, context, self.weights(), self.shape, False, active)
            largest = torch.stack([t.amax((1, 2, 3)) for t in active]).amax(0)
        return certified(z, x, outputs.clone(), largest.clone(), z.dtype)

    @property
    def layers(self) -> list[MaskedConvolution]:
        """All convolutions, in the order in which they are applied."""
        return [layer for layer in self.modules() if isinstance(layer, MaskedConvolution)]

    @property
    def context_maps(self) -> list[Tensor]:
        """The matrices for the context: of the first convolution and of every block; none without a context."""
        return [layer.weight for layer in self.modules() if isinstance(layer, nn.Linear)]

    def weights(self) -> PixelWeights:
        """The masked weights, biases and context matrices, in the order in which they are used."""
        return self.network().masked()

    def network(self) -> Network:
        """The network as plain data for the fused kernels."""
        layers = self.layers
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers]
        maps, masks = self.context_maps, [layer.mask for layer in layers]
        return Network(self.shape, self.channels, self.outputs, self.training, weights, biases, maps, masks)


def owners(maps: int, channels: int) -> Tensor:
    """The channel of the image to which each feature map belongs: 0, 0, 0, 1, 1, 1, 2, 2 for 8 maps of 3 channels."""
    return torch.arange(maps) * channels // maps
