"""PixelCNN: a network whose output for a pixel depends on the pixels before it alone."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError

Shape = tuple[int, int, int]
#: How far the first convolution looks, in every direction: its kernel is 7x7.
_FAR = 3


class MaskedConvolution(nn.Module):
    r"""A convolution :math:`(M \odot W) * h + b` that looks at nothing after the centre, in raster order.

    Both sides' maps belong to one of the image's ``channels`` each, spread evenly. At the centre, kind
    ``"A"`` lets a map of channel g see those of channels below g, and ``"B"`` those of channels up to g.
    What comes before the centre is seen whole. The rows of the kernel below the centre, which
    the mask would remove, are not even stored; the mask of the others is applied whenever the weight is
    used, so that whatever number is written into a masked entry has no effect.
    """

    mask: Tensor

    def __init__(
        self, kind: Literal["A", "B"], channels: int, inputs: int, outputs: int, reach: int, zero: bool = False
    ) -> None:
        super().__init__()
        self.reach = reach
        shape = (outputs, inputs, reach + 1, 2 * reach + 1)
        of_output = owners(outputs, channels).unsqueeze(1)
        of_input = owners(inputs, channels)
        mask = torch.ones(shape)
        mask[:, :, reach, reach] = ((of_input < of_output) if kind == "A" else (of_input <= of_output)).to(mask.dtype)
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

    def forward(self, h: Tensor, above: int = 0) -> Tensor:
        """The rows of the answer from row ``above`` of ``h`` on; rows that are missing above are zeros."""
        if above < self.reach:
            h = F.pad(h, (0, 0, self.reach - above, 0))
        return F.conv2d(h, self.mask * self.weight, self.bias, padding=(0, self.reach))


class ResidualBlock(nn.Module):
    r"""A bottleneck, :math:`h + W_3 f(W_2 * f(W_1 f(h)) + V k)` with a rectifier f and the context k."""

    def __init__(self, channels: int, maps: int, context: int) -> None:
        super().__init__()
        self.shrink = MaskedConvolution("B", channels, 2 * maps, maps, reach=0)
        self.look = MaskedConvolution("B", channels, maps, maps, reach=1)
        self.grow = MaskedConvolution("B", channels, maps, 2 * maps, reach=0)
        self.given = nn.Linear(context, maps, bias=False) if context else None

    def forward(self, h: Tensor, context: Tensor | None, above: int) -> Tensor:
        """The rows of the answer from row ``above`` of ``h`` on."""
        inner = _told(self.look(F.relu(self.shrink(F.relu(h))), above), self.given, context)
        outer: Tensor = self.grow(F.relu(inner))
        return h[:, :, above:] + outer


class PixelCNN(nn.Module):
    r"""A miniature of the PixelCNN of van den Oord et al. (2016), which the paper's image flows use.

    It maps images ``(B, C, H, W)``, and a context ``(B, K)``, to ``(B, C, H, W)``: the output for channel
    c of pixel (i, j) is a function of the pixels before (i, j) in raster order, of the channels before c of
    that pixel, and of the context. A 7x7 convolution makes ``2 * channels`` feature maps,
    ``residual_blocks`` bottlenecks with a 3x3 convolution over ``channels`` maps follow, and a 1x1
    head, which starts at zero. The context is added, by linear maps without bias, to the
    maps of the first convolution and of the 3x3 convolution of every block.

    So an output sees :attr:`reach` rows above its own, and as many columns to either side.

    Args:
        shape: (C, H, W).
        context: the dimension K of the context; 0 for none.
        channels: feature maps inside a bottleneck, at least C.
        residual_blocks: how many.

    Example:
        >>> network = PixelCNN(shape=(3, 8, 8), context=10)
        >>> network(torch.randn(5, 3, 8, 8), torch.randn(5, 10)).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(self, shape: Shape, context: int = 0, channels: int = 16, residual_blocks: int = 2) -> None:
        super().__init__()
        if channels < shape[0]:
            raise ArgumentError(
                f"channels must be at least {shape[0]}, the number of channels of the image, so that each of them "
                f"has feature maps; got {channels}"
            )
        if residual_blocks < 0:
            raise ArgumentError(f"residual_blocks must be at least 0; got {residual_blocks}")
        self.shape = shape
        self.first = MaskedConvolution("A", shape[0], shape[0], 2 * channels, reach=_FAR)
        self.given = nn.Linear(context, 2 * channels, bias=False) if context else None
        self.blocks = nn.ModuleList(ResidualBlock(shape[0], channels, context) for _ in range(residual_blocks))
        self.head = MaskedConvolution("B", shape[0], 2 * channels, shape[0], reach=0, zero=True)

    @property
    def reach(self) -> int:
        """How many rows up, and columns to either side, an output can see."""
        return _FAR + len(self.blocks)

    def steps(self, rows: int) -> int:
        """The longest chain of numbers in ``rows`` rows of which each depends on the one before.

        One row up, an output sees three columns further to the right, and any further row up adds one column at
        most. So along any dependency, (4 i + j) falls: that many pixels, of C channels each, make a chain.
        """
        channels, _, width = self.shape
        return channels * min(rows * width, width + (_FAR + 1) * (rows - 1))

    def forward(self, x: Tensor, context: Tensor | None = None, first: int = 0) -> Tensor:
        """The outputs for the rows of ``x`` from row ``first`` on.

        ``x`` may be a part of an image: rows from its top on, or rows of which at least :attr:`reach` come
        before ``first``.
        """
        # Every layer is computed only where it will be looked at: the last block one row higher than
        # the outputs, the block before that two.
        lead = min(first, len(self.blocks))
        above = min(first - lead, _FAR)
        h = _told(self.first(x[:, :, first - lead - above :], above), self.given, context)
        for i, block in enumerate(self.blocks):
            left = min(first, len(self.blocks) - i - 1)
            h = block(h, context, lead - left)
            lead = left
        outputs: Tensor = self.head(F.relu(h))
        return outputs


def owners(maps: int, channels: int) -> Tensor:
    """The channel of the image to which each feature map belongs.

    Example:
        >>> owners(8, 3).tolist()
        [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return torch.arange(maps) * channels // maps


def _told(h: Tensor, given: nn.Linear | None, context: Tensor | None) -> Tensor:
    if given is None or context is None:
        return h
    added: Tensor = given(context)
    return h + added.unsqueeze(-1).unsqueeze(-1)
