r"""Ordered substitution for images: inverting the map of a PixelCNN at the cost of about one pass.

The map is :math:`z = x + c(x)`, or :math:`z = e^{s(x)} (x + c(x))`, and the network sees only what comes before, in
raster order. One row up it sees at most three columns to the right, and any further row up adds one. So the pixels
(i, j) of one front, those of equal :math:`4 i + j`, do not depend on each other, and once all earlier fronts are known,
so is what they see. Front by front, every unit of the network is computed once, for all pixels of the front and all
images together.

:func:`ordered_pixels_adjoint` takes the fronts backwards, for the gradients that the implicit function theorem
asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .pixel_affine import log_scale
from .pixelcnn import PixelWeights

#: Pixels of a front are one row and this many columns apart.
SKEW = 4


class Convolution(NamedTuple):
    """A masked convolution's numbers, by the places that it looks at."""

    places: Tensor  # (outputs, inputs, places before the centre)
    centre: Tensor  # (outputs, inputs)
    bias: Tensor  # (outputs, 1)
    context: Tensor | None  # (outputs, 1, B), what the context adds

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, context: Tensor | None = None) -> Convolution:
        """From a weight (outputs, inputs, reach + 1, 2 * reach + 1), and what the context adds (B, outputs)."""
        places = weight.flatten(2)
        before = weight.shape[2] * weight.shape[3] - weight.shape[2]
        added = None if context is None else context.mT.unsqueeze(1)
        return cls(places[:, :, :before], places[:, :, before].contiguous(), bias.unsqueeze(1), added)


class Block(NamedTuple):
    """A bottleneck."""

    shrink: Convolution
    look: Convolution
    grow: Convolution


class PixelNetwork(NamedTuple):
    """A PixelCNN's structure and numbers."""

    shape: tuple[int, int, int]
    first: Convolution
    blocks: list[Block]
    head: Convolution

    @classmethod
    def of(cls, shape: Sequence[int], numbers: PixelWeights, context: Tensor | None) -> PixelNetwork:
        """From masked weights, and the context (B, K)."""
        weights, biases, given = numbers
        channels, height, width = shape

        def convolution(i: int, told: int | None = None) -> Convolution:
            added = None if context is None or told is None else F.linear(context, given[told])
            return Convolution.of(weights[i], biases[i], added)

        blocks = [
            Block(convolution(i), convolution(i + 1, i // 3 + 1), convolution(i + 2))
            for i in range(1, len(weights) - 1, 3)
        ]
        return cls((channels, height, width), convolution(0, 0), blocks, convolution(-1))

    def of_channel(self, c: int) -> tuple[slice, slice]:
        """The feature maps that belong to a channel: of the wide layers, and of the bottlenecks."""
        return self._share(c, len(self.first.bias)), self._share(c, len(self.first.bias) // 2)

    def _share(self, c: int, maps: int) -> slice:
        channels = self.shape[0]
        return slice(-(-c * maps // channels), -(-(c + 1) * maps // channels))


class Front(NamedTuple):
    """The pixels of one front, and where they look, place by place of a kernel; H * W is for places outside."""

    pixels: Tensor
    far: Tensor  # what a 7x7 kernel sees before the centre
    near: Tensor  # what a 3x3 kernel sees
    far_after: Tensor  # the centres from which they are seen
    near_after: Tensor


@lru_cache(maxsize=16)
def fronts(height: int, width: int, device: torch.device) -> list[Front]:
    """The fronts of an image in their order.

    Example:
        >>> [front.pixels.tolist() for front in fronts(2, 5, torch.device("cpu"))]
        [[0], [1], [2], [3], [4, 5], [6], [7], [8], [9]]
    """
    found = []
    for time in range(width + SKEW * (height - 1)):
        rows = torch.arange(height)
        columns = time - SKEW * rows
        inside = (columns >= 0) & (columns < width)
        rows, columns = rows[inside], columns[inside]
        if not len(rows):  # a narrow image has fronts without pixels
            continue
        places = []
        for sign in (1, -1):
            for reach in (3, 1):
                side = 2 * reach + 1
                kernel = torch.arange((reach + 1) * side - reach - 1).unsqueeze(1)
                i = rows + sign * (kernel // side - reach)
                j = columns + sign * (kernel % side - reach)
                outside = (i < 0) | (i >= height) | (j < 0) | (j >= width)
                places.append(torch.where(outside, height * width, i * width + j).flatten())
        found.append(Front(*(t.to(device) for t in (rows * width + columns, *places))))
    return found


def ordered_pixels(network: PixelNetwork, z: Tensor) -> Tensor:
    """Solve z = x + c(x), or z = e^s(x) (x + c(x)), for x, both of shape (C, H * W, B)."""
    channels, height, width = network.shape
    images, blocks = z.shape[-1], network.blocks
    first, looks = _before(network.first), [_before(block.look) for block in blocks]
    x = _empty_maps(z, channels)
    looked_at = [_empty_maps(z, len(block.look.bias)) for block in blocks]  # by the 3x3 convolutions
    for front in fronts(height, width, z.device):
        count = len(front.pixels)
        target = z.index_select(1, front.pixels).view(channels, count * images)
        now = torch.empty_like(target)
        # What the places before give is known for all feature maps; the centre follows channel by channel.
        h = _look_back(network.first, first, x, front.far, count)
        inner = [
            _look_back(block.look, matrix, maps, front.near, count)
            for block, matrix, maps in zip(blocks, looks, looked_at, strict=True)
        ]
        small = [torch.empty_like(t) for t in inner]
        active = [torch.empty_like(h) for _ in range(len(blocks) + 1)]
        for c in range(channels):
            wide, narrow = network.of_channel(c)
            known, few = slice(wide.stop), slice(narrow.stop)  # the maps of the channels up to c
            if c:
                h[wide].addmm_(network.first.centre[wide, :c], now[:c])
            torch.clamp(h[wide], min=0, out=active[0][wide])
            for k, (shrink, look, grow) in enumerate(blocks):
                torch.addmm(shrink.bias[narrow], shrink.centre[narrow, known], active[k][known], out=small[k][narrow])
                small[k][narrow].relu_()
                inner[k][narrow].addmm_(look.centre[narrow, few], small[k][few]).relu_()
                h[wide].addmm_(grow.centre[wide, few], inner[k][few]).add_(grow.bias[wide])
                torch.clamp(h[wide], min=0, out=active[k + 1][wide])
            mine = slice(c, None, channels)  # the head's outputs for this channel
            told = torch.addmm(network.head.bias[mine], network.head.centre[mine, known], active[-1][known])
            y = target[c] if len(told) == 1 else target[c] * torch.exp(-log_scale(told[1]))
            torch.sub(y, told[0], out=now[c])
        _put(x, front.pixels, now)
        for maps, units in zip(looked_at, small, strict=True):
            _put(maps, front.pixels, units)
    return x[:, :-1]


class Activations(NamedTuple):
    """Which units are active, all of shape (maps, H * W, B): the rest of them pass no gradient on."""

    wide: list[Tensor]  # before every block, and before the head
    small: list[Tensor]  # before the 3x3 convolution of every block
    inner: list[Tensor]  # after it


def ordered_pixels_adjoint(
    network: PixelNetwork, active: Activations, grad: Tensor, gain: Tensor | None = None
) -> Tensor:
    r"""Solve :math:`v + J^T v = g` for v, both of shape (C, H * W, B), where J is the Jacobian of c.

    With a ``gain`` k of the same shape, for a network with a second output r,
    :math:`v + J^T v + J_r^T (k \odot v) = g`.

    Backwards, what a unit passes on is known once all that see it are done: the later fronts, and in its
    own pixel the later channels.
    """
    channels, height, width = network.shape
    images, blocks = grad.shape[-1], network.blocks
    first, looks = _after(network.first), [_after(block.look) for block in blocks]
    v = _empty_maps(grad, channels)
    of_start = _empty_maps(grad, len(network.first.bias))
    of_inner = [_empty_maps(grad, len(block.look.bias)) for block in blocks]
    for front in reversed(fronts(height, width, grad.device)):
        count = len(front.pixels)
        # The gradients at the pixels of this front, so far those from later ones.
        now = torch.mm(first, _gather(of_start, front.far_after, count)).add_(_gather(grad, front.pixels, count))
        gains = None if gain is None else _gather(gain, front.pixels, count)
        start = grad.new_empty(len(network.first.bias), count * images)
        small = [torch.mm(m, _gather(t, front.near_after, count)) for m, t in zip(looks, of_inner, strict=True)]
        inner = [torch.empty_like(t) for t in small]
        outer = [torch.empty_like(start) for _ in blocks]
        wide_mask = [_gather(t, front.pixels, count) for t in active.wide]
        small_mask = [_gather(t, front.pixels, count) for t in active.small]
        inner_mask = [_gather(t, front.pixels, count) for t in active.inner]
        for c in reversed(range(channels)):
            wide, narrow = network.of_channel(c)
            seeing, few = slice(wide.start, None), slice(narrow.start, None)  # the maps of the channels from c on
            if c + 1 < channels:
                now[c : c + 1].addmm_(network.first.centre[wide.stop :, c : c + 1].mT, start[wide.stop :])
            h = torch.mm(network.head.centre[c:channels, wide].mT, now[c:])
            if gains is not None:
                h.addmm_(network.head.centre[channels + c :, wide].mT, gains[c:] * now[c:])
            h.neg_().mul_(wide_mask[-1][wide])
            for k in reversed(range(len(blocks))):
                shrink, look, grow = blocks[k]
                outer[k][wide] = h
                torch.mm(grow.centre[seeing, narrow].mT, outer[k][seeing], out=inner[k][narrow])
                inner[k][narrow].mul_(inner_mask[k][narrow])
                small[k][narrow].addmm_(look.centre[few, narrow].mT, inner[k][few]).mul_(small_mask[k][narrow])
                h.add_(torch.mm(shrink.centre[few, wide].mT, small[k][few]).mul_(wide_mask[k][wide]))
            start[wide] = h
        _put(v, front.pixels, now)
        _put(of_start, front.pixels, start)
        for maps, units in zip(of_inner, inner, strict=True):
            _put(maps, front.pixels, units)
    return v[:, :-1]


def _before(convolution: Convolution) -> Tensor:
    """The matrix from what is seen before the centre to the outputs."""
    return convolution.places.flatten(1)


def _after(convolution: Convolution) -> Tensor:
    """The matrix from the gradients of the outputs, wherever the centre is seen from, to that of the centre."""
    return convolution.places.transpose(0, 1).flatten(1)


def _empty_maps(like: Tensor, maps: int) -> Tensor:
    """Zeros for all pixels, and one place more for what lies outside and stays zero."""
    return like.new_zeros(maps, like.shape[1] + 1, like.shape[2])


def _look_back(convolution: Convolution, matrix: Tensor, maps: Tensor, places: Tensor, count: int) -> Tensor:
    found = torch.addmm(convolution.bias, matrix, _gather(maps, places, count))
    if convolution.context is not None:
        found.view(len(found), count, -1).add_(convolution.context)
    return found


def _gather(maps: Tensor, places: Tensor, count: int) -> Tensor:
    """Every map at the given places of so many pixels, (maps * places of a kernel, pixels * images)."""
    return maps.index_select(1, places).view(len(maps) * len(places) // count, count * maps.shape[-1])


def _put(maps: Tensor, pixels: Tensor, values: Tensor) -> None:
    maps.index_copy_(1, pixels, values.view(len(maps), len(pixels), -1))
