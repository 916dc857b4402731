r"""A PixelCNN evaluated front by front, forwards to invert an autoregressive map of images, and backwards.

The network sees only what comes before, in raster order. One row up it sees at most three columns to the right, and any
further row up adds one. So the pixels (i, j) of one front, those of equal :math:`4 i + j`, do not depend on each other,
and once all earlier fronts are known, so are their inputs. Front by front, every unit of the network is computed once,
for all pixels of the front and all images together.

:func:`pixelcnn_adjoint` takes the fronts backwards, for the gradients that the implicit function theorem asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..solvers import Inversion, Step
from .pixel_affine import unscaled
from .pixelcnn import PixelWeights

#: Rounding error to allow for, in ulps of the largest value: outputs are sums of hundreds of products, which the
#: forward map adds in another order.
_ULPS = 32.0
#: Pixels of a front are one row and this many columns apart.
SKEW = 4


class Convolution(NamedTuple):
    """The parameters of a masked convolution, by the places of its kernel."""

    before: Tensor  # (outputs, inputs * places before the centre)
    centre: Tensor  # (outputs, inputs)
    bias: Tensor  # (outputs, 1)
    context: Tensor | None  # (outputs, 1, B), what the context adds


class PixelNetwork(NamedTuple):
    """A PixelCNN's shape and parameters; a block has three convolutions."""

    shape: tuple[int, int, int]
    first: Convolution
    blocks: list[tuple[Convolution, Convolution, Convolution]]
    head: Convolution

    @classmethod
    def of(cls, shape: tuple[int, int, int], parameters: PixelWeights, context: Tensor | None) -> PixelNetwork:
        """From masked weights, and the context (B, K)."""
        weights, biases, context_weights = parameters

        def convolution(i: int, term: int | None = None) -> Convolution:
            places, rows = weights[i].flatten(2), weights[i].shape[2]
            centre = places.shape[2] - rows  # a kernel has one place fewer after the centre than it has rows
            added = None
            if context is not None and term is not None:
                added = F.linear(context, context_weights[term]).mT.unsqueeze(1)
            before = places[:, :, :centre].flatten(1)
            return Convolution(before, places[:, :, centre].contiguous(), biases[i].unsqueeze(1), added)

        starts = range(1, len(weights) - 1, 3)
        blocks = [(convolution(i), convolution(i + 1, i // 3 + 1), convolution(i + 2)) for i in starts]
        return cls(shape, convolution(0, 0), blocks, convolution(-1))

    def of_channel(self, c: int) -> tuple[slice, slice]:
        """The feature maps that belong to a channel: of the wide layers, and of the bottlenecks."""
        channels, maps = self.shape[0], len(self.first.bias)
        wide, narrow = (slice(-(-c * n // channels), -(-(c + 1) * n // channels)) for n in (maps, maps // 2))
        return wide, narrow


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
    size = height * width
    index = torch.arange(size)

    def neighbours(reach: int) -> tuple[Tensor, Tensor]:
        """Where every pixel looks, place by place, and from where it is seen; (places, H * W)."""
        padded = F.pad(index.double().view(1, 1, height, width), 4 * [reach], value=size)
        places = F.unfold(padded, 2 * reach + 1)[0].long()
        return places[: len(places) // 2], places.flip(0)[: len(places) // 2]

    (far, far_after), (near, near_after) = neighbours(3), neighbours(1)
    time = SKEW * (index // width) + index % width
    result = []
    for now in range(width + SKEW * (height - 1)):
        pixels = (time == now).nonzero().squeeze(1)
        if len(pixels):  # a narrow image has fronts without pixels
            places = (each[:, pixels].flatten() for each in (far, near, far_after, near_after))
            result.append(Front(pixels.to(device), *(t.to(device) for t in places)))
    return result


def incremental(network: PixelNetwork, like: Tensor) -> Iterator[Step]:
    """The parameters of one front and channel after the other; ``like`` is any tensor of shape (D, B).

    The features of a step are the pixels of a front in one channel.
    """
    channels, height, width = network.shape
    images, blocks, size = like.shape[-1], network.blocks, height * width
    x = _empty_maps(like, channels, size)
    looked_at = [_empty_maps(like, len(look.bias), size) for _, look, _ in blocks]  # by the 3x3 convolutions
    for front in fronts(height, width, like.device):
        count = len(front.pixels)
        now = like.new_empty(channels, count * images)
        # The contributions of earlier places are known for all feature maps; the centre follows channel by channel.
        h = _look_back(network.first, x, front.far, count)
        looks = zip(blocks, looked_at, strict=True)
        inner = [_look_back(look, maps, front.near, count) for (_, look, _), maps in looks]
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
            own = slice(c, None, channels)  # the head's outputs for this channel
            outputs = torch.addmm(network.head.bias[own], network.head.centre[own, known], active[-1][known])
            step = Step(c * size + front.pixels, outputs.view(len(outputs), count, images).transpose(0, 1))
            yield step
            now[c] = step.solution.flatten()
        _put(x, front.pixels, now)
        for maps, units in zip(looked_at, small, strict=True):
            _put(maps, front.pixels, units)


class ActiveUnits(NamedTuple):
    """Which units are active, all of shape (maps, H * W, B): the others pass no gradient on."""

    wide: list[Tensor]  # before every block, and before the head
    small: list[Tensor]  # before the 3x3 convolution of every block
    inner: list[Tensor]  # after it


def pixelcnn_adjoint(
    network: PixelNetwork, active: ActiveUnits, grad: Tensor, local: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Gradients through the inverse of an autoregressive map, with respect to z (D, B) and the parameters (D, P, B).

    ``local(features, g)`` is the chain rule through the scalar inverse of some features, (n, B) to (n, B) and (n, P,
    B). Backwards, the gradient of a unit is known once all units that see it are done: those of later fronts, and of
    later channels of its own pixel.
    """
    channels, height, width = network.shape
    images, blocks, size = grad.shape[-1], network.blocks, height * width
    outputs = len(network.head.bias) // channels
    first, looks = _after(network.first), [_after(look) for _, look, _ in blocks]
    of_x = _empty_maps(grad, channels, size)
    of_x[:, :-1] = grad.view(channels, size, images)
    grad_z, grad_h = torch.empty_like(grad), grad.new_empty(len(grad), outputs, images)
    of_start = _empty_maps(grad, len(network.first.bias), size)
    of_inner = [_empty_maps(grad, len(look.bias), size) for _, look, _ in blocks]
    for front in reversed(fronts(height, width, grad.device)):
        count = len(front.pixels)
        # The gradients at the pixels of this front, so far those from later ones.
        now = torch.mm(first, _gather(of_start, front.far_after, count)).add_(_gather(of_x, front.pixels, count))
        of_head = grad.new_zeros(outputs * channels, count * images)
        start = grad.new_empty(len(network.first.bias), count * images)
        small = [torch.mm(m, _gather(t, front.near_after, count)) for m, t in zip(looks, of_inner, strict=True)]
        inner = [torch.empty_like(t) for t in small]
        outer = [torch.empty_like(start) for _ in blocks]
        wide_mask, small_mask, inner_mask = ([_gather(t, front.pixels, count) for t in each] for each in active)
        for c in reversed(range(channels)):
            wide, narrow = network.of_channel(c)
            seeing, few = slice(wide.start, None), slice(narrow.start, None)  # the maps of the channels from c on
            if c + 1 < channels:
                now[c : c + 1].addmm_(network.first.centre[wide.stop :, c : c + 1].mT, start[wide.stop :])
            features = c * size + front.pixels
            grad_z[features], of_outputs = local(features, now[c].view(count, images))
            grad_h[features] = of_outputs
            of_head[c::channels] = of_outputs.transpose(0, 1).reshape(outputs, -1)
            h = torch.mm(network.head.centre[:, wide].mT, of_head).mul_(wide_mask[-1][wide])
            for k in reversed(range(len(blocks))):
                shrink, look, grow = blocks[k]
                outer[k][wide] = h
                torch.mm(grow.centre[seeing, narrow].mT, outer[k][seeing], out=inner[k][narrow])
                inner[k][narrow].mul_(inner_mask[k][narrow])
                small[k][narrow].addmm_(look.centre[few, narrow].mT, inner[k][few]).mul_(small_mask[k][narrow])
                h.add_(torch.mm(shrink.centre[few, wide].mT, small[k][few]).mul_(wide_mask[k][wide]))
            start[wide] = h
        _put(of_start, front.pixels, start)
        for maps, units in zip(of_inner, inner, strict=True):
            _put(maps, front.pixels, units)
    return grad_z, grad_h


def certified(z: Tensor, x: Tensor, outputs: Tensor, largest: Tensor, units: torch.dtype) -> Inversion:
    """The inverse with a certificate: its residual must be within rounding in the dtype of the network's units.

    ``outputs`` are :mod:`sinuflow.ops.pixel_affine`'s at x, and ``largest`` is the largest hidden unit of every image.
    The residual is that of y = x + c(x); with log-scales, z is divided by the scale. Scales are as exact as the units,
    so that far from the data, where y and units are large, a right answer may be refused. To allow for the product of
    both would accept wrong answers elsewhere.
    """
    y, ladj = unscaled(z, outputs)
    residual = (outputs[: len(z)] - y).abs().amax(0)
    involved = torch.maximum(torch.maximum(x.abs().amax(0), y.abs().amax(0)), largest)
    converged = involved.isfinite() & (residual <= _ULPS * torch.finfo(units).eps * involved)
    return Inversion(x, ladj, torch.ones_like(residual, dtype=torch.int32), residual, converged)


def _after(convolution: Convolution) -> Tensor:
    """The matrix from the gradients of the outputs that see the centre to that of the centre."""
    outputs, inputs = convolution.centre.shape
    return convolution.before.view(outputs, inputs, -1).transpose(0, 1).flatten(1)


def _empty_maps(like: Tensor, maps: int, pixels: int) -> Tensor:
    """Zeros for all pixels, and one more place for those outside of the image, which stays zero."""
    return like.new_zeros(maps, pixels + 1, like.shape[-1])


def _look_back(convolution: Convolution, maps: Tensor, places: Tensor, count: int) -> Tensor:
    h = torch.addmm(convolution.bias, convolution.before, _gather(maps, places, count))
    if convolution.context is not None:
        h.view(len(h), count, -1).add_(convolution.context)
    return h


def _gather(maps: Tensor, places: Tensor, count: int) -> Tensor:
    """Every map at the places of ``count`` pixels, (maps * places of a kernel, pixels * images)."""
    return maps.index_select(1, places).view(len(maps) * len(places) // count, count * maps.shape[-1])


def _put(maps: Tensor, pixels: Tensor, values: Tensor) -> None:
    maps.index_copy_(1, pixels, values.view(len(maps), len(pixels), -1))
