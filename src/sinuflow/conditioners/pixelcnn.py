"""PixelCNN: a network whose output for a pixel depends on the pixels before it alone."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..flow_config import check_channels
from ..ops.pixelcnn import PixelWeights, pixel_network
from ..ops.pixelcnn_fused import Network

Shape = tuple[int, int, int]
#: How far the first convolution looks, in every direction: its kernel is 7x7.
_FAR = 3


class MaskedConvolution(nn.Module):
    r"""The numbers of a convolution :math:`(M \odot W) * h + b` that sees nothing after the centre, in raster order.

    Both sides' maps belong to one of the image's ``channels`` each, spread evenly; those of the outputs in so many
    ``groups``, each of which is spread over all channels. At the centre, kind
    ``"A"`` lets a map of channel g see those of channels below g, and ``"B"`` those of channels up to g.
    What comes before the centre is seen whole. The rows of the kernel below the centre, which
    the mask would remove, are not even stored; the mask of the others is applied whenever the weight is
    used, so that whatever number is written into a masked entry has no effect.
    """

    mask: Tensor

    def __init__(
        self,
        kind: Literal["A", "B"],
        channels: int,
        inputs: int,
        outputs: int,
        reach: int,
        zero: bool = False,
        groups: int = 1,
    ) -> None:
        super().__init__()
        shape = (outputs, inputs, reach + 1, 2 * reach + 1)
        of_output = owners(outputs // groups, channels).repeat(groups).unsqueeze(1)
        of_input = owners(inputs, channels)
        mask = torch.ones(shape)
        mask[:, :, reach, reach] = (of_input < of_output) if kind == "A" else (of_input <= of_output)
        mask[:, :, reach, reach + 1 :] = 0
        self.register_buffer("mask", mask, persistent=False)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(outputs))
        if not zero:
            bound = 1 / math.sqrt(inputs * ((reach + 1) * (2 * reach + 1) - reach))
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)
            with torch.no_grad():
                self.weight.mul_(self.mask)

    @property
    def masked_weight(self) -> Tensor:
        """What is used of the weight."""
        return self.mask * self.weight


class ContextMap(nn.Module):
    """The numbers of a linear map of the context, without a bias, to what it adds to every feature map."""

    def __init__(self, context: int, maps: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(context)
        self.weight = nn.Parameter(torch.empty(maps, context).uniform_(-bound, bound))


class ResidualBlock(nn.Module):
    r"""The numbers of a bottleneck, :math:`h + W_3 f(W_2 * f(W_1 f(h)) + V k)` with a rectifier f and the context k."""

    def __init__(self, channels: int, maps: int, context: int) -> None:
        super().__init__()
        self.shrink = MaskedConvolution("B", channels, 2 * maps, maps, reach=0)
        self.look = MaskedConvolution("B", channels, maps, maps, reach=1)
        self.grow = MaskedConvolution("B", channels, maps, 2 * maps, reach=0)
        self.given = ContextMap(context, maps) if context else None


class PixelCNN(nn.Module):
    r"""A miniature of the PixelCNN of van den Oord et al. (2016), which the paper's image flows use.

    It maps images ``(B, C, H, W)``, and a context ``(B, K)``, to ``(B, C, H, W)``, or to as many numbers for
    each channel of each pixel as there are ``outputs``, ``(B, outputs * C, H, W)``: the output for channel
    c of pixel (i, j) is a function of the pixels before (i, j) in raster order, of the channels before c of
    that pixel, and of the context. A 7x7 convolution makes ``2 * channels`` feature maps,
    ``residual_blocks`` bottlenecks with a 3x3 convolution over ``channels`` maps follow, and a 1x1
    head, which starts at zero. The context is added, by linear maps without bias, to the
    maps of the first convolution and of the 3x3 convolution of every block.

    Args:
        shape: (C, H, W).
        context: the dimension K of the context; 0 for none.
        channels: feature maps inside a bottleneck, at least C.
        residual_blocks: how many.
        outputs: numbers for each channel of each pixel: those of the first kind for all channels, then of the next.

    Example:
        >>> network = PixelCNN(shape=(3, 8, 8), context=10)
        >>> network(torch.randn(5, 3, 8, 8), torch.randn(5, 10)).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(
        self, shape: Shape, context: int = 0, channels: int = 16, residual_blocks: int = 2, outputs: int = 1
    ) -> None:
        super().__init__()
        check_channels(channels, shape[0])
        if residual_blocks < 0:
            raise ArgumentError(f"residual_blocks must be at least 0; got {residual_blocks}")
        self.shape, self.context, self.channels, self.outputs = shape, context, channels, outputs
        self.first = MaskedConvolution("A", shape[0], shape[0], 2 * channels, reach=_FAR)
        self.given = ContextMap(context, 2 * channels) if context else None
        self.blocks = nn.ModuleList(ResidualBlock(shape[0], channels, context) for _ in range(residual_blocks))
        self.head = MaskedConvolution(
            "B", shape[0], 2 * channels, outputs * shape[0], reach=0, zero=True, groups=outputs
        )

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return pixel_network(x, context, self.numbers())

    @property
    def layers(self) -> list[MaskedConvolution]:
        """All convolutions, in the order in which they are used."""
        inner = [layer for b in self._residual_blocks for layer in (b.shrink, b.look, b.grow)]
        return [self.first, *inner, self.head]

    @property
    def context_maps(self) -> list[Tensor]:
        """The matrices for the context: of the first convolution and of every block; none without a context."""
        given = (self.given, *(block.given for block in self._residual_blocks))
        return [g.weight for g in given if g is not None]

    @property
    def _residual_blocks(self) -> list[ResidualBlock]:
        return [block for block in self.blocks if isinstance(block, ResidualBlock)]

    def network(self) -> Network:
        """The network as plain data."""
        layers = self.layers
        return Network(
            self.shape,
            self.channels,
            self.outputs,
            self.training,
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            self.context_maps,
            [layer.mask for layer in layers],
        )

    def numbers(self) -> PixelWeights:
        """The masked weights and the rest, in the order in which they are used."""
        layers = self.layers
        masked = [layer.masked_weight for layer in layers]
        return PixelWeights(masked, [layer.bias for layer in layers], self.context_maps)


def owners(maps: int, channels: int) -> Tensor:
    """The channel of the image to which each feature map belongs.

    Example:
        >>> owners(8, 3).tolist()
        [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return torch.arange(maps) * channels // maps
