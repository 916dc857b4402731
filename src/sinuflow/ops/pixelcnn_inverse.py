r"""A PixelCNN evaluated front by front, to invert an autoregressive bijection of images, and for its gradients.

A pixel depends on preceding pixels in raster order only: in the row above, up to three columns to its right, and up to
one column more for each further row. So the pixels (i, j) of a front, those of equal :math:`4 i + j`, do not depend on
each other, and their inputs are known as soon as all earlier fronts are. Every unit of the network is computed once,
for all pixels of a front and all images together.

:func:`pixelcnn_adjoint` goes through the fronts in reverse, for the gradients of the implicit function theorem.
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

#: Tolerance of the residual, in ulps of the largest value: outputs are sums of hundreds of products, which the forward
#: pass adds in another order.
_ULPS = 32.0
#: Neighbouring pixels of a front are one row and this number of columns apart.
SKEW = 4


class Convolution(NamedTuple):
    """The parameters of a masked convolution, by the positions of its kernel."""

    before: Tensor  # (outputs, inputs * positions before the centre)
    centre: Tensor  # (outputs, inputs)
    bias: Tensor  # (outputs, 1)
    context: Tensor | None  # (outputs, 1, B), the term of the context


class PixelNetwork(NamedTuple):
    """A PixelCNN's shape and parameters; a block has the convolutions shrink (1x1), look (3x3) and grow (1x1)."""

    shape: tuple[int, int, int]
    first: Convolution
    blocks: list[tuple[Convolution, Convolution, Convolution]]
    head: Convolution

    @classmethod
    def of(cls, shape: tuple[int, int, int], parameters: PixelWeights, context: Tensor | None) -> PixelNetwork:
        """From masked weights, and the context (B, K)."""
        weights, biases, context_weights = parameters

        def convolution(i: int, term: int | None = None) -> Convolution:
            kernels, rows = weights[i].flatten(2), weights[i].shape[2]
            centre = kernels.shape[2] - rows  # the centre is followed by rows - 1 positions
            context_term = None
            if context is not None and term is not None:
                context_term = F.linear(context, context_weights[term]).mT.unsqueeze(1)
            before = kernels[:, :, :centre].flatten(1)
            return Convolution(before, kernels[:, :, centre].contiguous(), biases[i].unsqueeze(1), context_term)

        starts = range(1, len(weights) - 1, 3)
        blocks = [(convolution(i), convolution(i + 1, i // 3 + 1), convolution(i + 2)) for i in starts]
        return cls(shape, convolution(0, 0), blocks, convolution(-1))

    def channel_maps(self, c: int) -> tuple[slice, slice]:
        """The feature maps of a channel, in wide layers and in bottlenecks."""
        channels, maps = self.shape[0], len(self.first.bias)
        wide, narrow = (slice(-(-c * n // channels), -(-(c + 1) * n // channels)) for n in (maps, maps // 2))
        return wide, narrow


class Front(NamedTuple):
    """The pixels of one front, and the pixels that they depend on, for each position of a kernel; H * W is padding."""

    pixels: Tensor
    inputs_7x7: Tensor  # the pixels before the centre of a 7x7 kernel
    inputs_3x3: Tensor
    outputs_7x7: Tensor  # the pixels that depend on these, in the backward pass
    outputs_3x3: Tensor


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
        """The inputs and the outputs of every pixel, (positions, H * W)."""
        padded = F.pad(index.double().view(1, 1, height, width), 4 * [reach], value=size)
        patches = F.unfold(padded, 2 * reach + 1)[0].long()
        return patches[: len(patches) // 2], patches.flip(0)[: len(patches) // 2]

    (inputs_7x7, outputs_7x7), (inputs_3x3, outputs_3x3) = neighbours(3), neighbours(1)
    front_index = SKEW * (index // width) + index % width
    result = []
    for i in range(width + SKEW * (height - 1)):
        pixels = (front_index == i).nonzero().squeeze(1)
        if len(pixels):  # a narrow image has fronts without pixels
            indices = (t[:, pixels].flatten() for t in (inputs_7x7, inputs_3x3, outputs_7x7, outputs_3x3))
            result.append(Front(pixels.to(device), *(t.to(device) for t in indices)))
    return result


def incremental(network: PixelNetwork, like: Tensor) -> Iterator[Step]:
    """Steps for one front and channel after the other; ``like`` is any tensor of shape (D, B).

    The features of a step are one channel of the pixels of a front.
    """
    channels, height, width = network.shape
    images, blocks, size = like.shape[-1], network.blocks, height * width
    x = _empty_maps(like, channels, size)
    look_inputs = [_empty_maps(like, len(look.bias), size) for _, look, _ in blocks]  # of the 3x3 convolutions
    for front in fronts(height, width, like.device):
        count = len(front.pixels)
        solved = like.new_empty(channels, count * images)
        # The contributions of earlier pixels are known for all feature maps; the centre follows channel by channel.
        h = _before_centre(network.first, x, front.inputs_7x7, count)
        pairs = zip(blocks, look_inputs, strict=True)
        inner = [_before_centre(look, maps, front.inputs_3x3, count) for (_, look, _), maps in pairs]
        small = [torch.empty_like(t) for t in inner]
        active = [torch.empty_like(h) for _ in range(len(blocks) + 1)]
        for c in range(channels):
            wide, narrow = network.channel_maps(c)
            wide_done, narrow_done = slice(wide.stop), slice(narrow.stop)  # the maps of the channels up to c
            if c:
                h[wide].addmm_(network.first.centre[wide, :c], solved[:c])
            torch.clamp(h[wide], min=0, out=active[0][wide])
            for k, (shrink, look, grow) in enumerate(blocks):
                torch.addmm(
                    shrink.bias[narrow], shrink.centre[narrow, wide_done], active[k][wide_done], out=small[k][narrow]
                )
                small[k][narrow].relu_()
                inner[k][narrow].addmm_(look.centre[narrow, narrow_done], small[k][narrow_done]).relu_()
                h[wide].addmm_(grow.centre[wide, narrow_done], inner[k][narrow_done]).add_(grow.bias[wide])
                torch.clamp(h[wide], min=0, out=active[k + 1][wide])
            rows = slice(c, None, channels)  # the head's outputs for this channel
            outputs = torch.addmm(network.head.bias[rows], network.head.centre[rows, wide_done], active[-1][wide_done])
            step = Step(c * size + front.pixels, outputs.view(len(outputs), count, images).transpose(0, 1))
            yield step
            solved[c] = step.solution.flatten()
        _scatter(x, front.pixels, solved)
        for maps, units in zip(look_inputs, small, strict=True):
            _scatter(maps, front.pixels, units)


class ActiveUnits(NamedTuple):
    """Masks of the active ReLU units, all of shape (maps, H * W, B)."""

    wide: list[Tensor]  # before every block, and before the head
    small: list[Tensor]  # before the 3x3 convolution of every block
    inner: list[Tensor]  # after it


def pixelcnn_adjoint(
    network: PixelNetwork, active: ActiveUnits, grad: Tensor, local: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Gradients through the inverse of an autoregressive map, with respect to z (D, B) and the parameters (D, P, B).

    ``local(features, g)`` is the backward pass of the scalar inverse of some features, from (n, B) to (n, B) and
    (n, P, B). The gradient of a unit is known once those of all units that depend on it are: of later fronts, and of
    later channels of the same pixel.
    """
    channels, height, width = network.shape
    images, blocks, size = grad.shape[-1], network.blocks, height * width
    outputs = len(network.head.bias) // channels
    first, looks = _transposed(network.first), [_transposed(look) for _, look, _ in blocks]
    grad_x = _empty_maps(grad, channels, size)
    grad_x[:, :-1] = grad.view(channels, size, images)
    grad_z, grad_h = torch.empty_like(grad), grad.new_empty(len(grad), outputs, images)
    grad_start = _empty_maps(grad, len(network.first.bias), size)
    grad_inner = [_empty_maps(grad, len(look.bias), size) for _, look, _ in blocks]
    for front in reversed(fronts(height, width, grad.device)):
        count = len(front.pixels)
        # The gradients at the pixels of this front: first the contributions of later fronts.
        grad_pixels = torch.mm(first, _gather(grad_start, front.outputs_7x7, count))
        grad_pixels.add_(_gather(grad_x, front.pixels, count))
        grad_head = grad.new_zeros(outputs * channels, count * images)
        start = grad.new_empty(len(network.first.bias), count * images)
        small = [torch.mm(m, _gather(t, front.outputs_3x3, count)) for m, t in zip(looks, grad_inner, strict=True)]
        inner = [torch.empty_like(t) for t in small]
        outer = [torch.empty_like(start) for _ in blocks]
        wide_mask, small_mask, inner_mask = ([_gather(t, front.pixels, count) for t in each] for each in active)
        for c in reversed(range(channels)):
            wide, narrow = network.channel_maps(c)
            # The maps of the channels from c on.
            wide_later, narrow_later = slice(wide.start, None), slice(narrow.start, None)
            if c + 1 < channels:
                grad_pixels[c : c + 1].addmm_(network.first.centre[wide.stop :, c : c + 1].mT, start[wide.stop :])
            features = c * size + front.pixels
            grad_z[features], grad_parameters = local(features, grad_pixels[c].view(count, images))
            grad_h[features] = grad_parameters
            grad_head[c::channels] = grad_parameters.transpose(0, 1).reshape(outputs, -1)
            h = torch.mm(network.head.centre[:, wide].mT, grad_head).mul_(wide_mask[-1][wide])
            for k in reversed(range(len(blocks))):
                shrink, look, grow = blocks[k]
                outer[k][wide] = h
                torch.mm(grow.centre[wide_later, narrow].mT, outer[k][wide_later], out=inner[k][narrow])
                inner[k][narrow].mul_(inner_mask[k][narrow])
                small[k][narrow].addmm_(look.centre[narrow_later, narrow].mT, inner[k][narrow_later]).mul_(
                    small_mask[k][narrow]
                )
                h.add_(torch.mm(shrink.centre[narrow_later, wide].mT, small[k][narrow_later]).mul_(wide_mask[k][wide]))
            start[wide] = h
        _scatter(grad_start, front.pixels, start)
        for maps, units in zip(grad_inner, inner, strict=True):
            _scatter(maps, front.pixels, units)
    return grad_z, grad_h


def certified(z: Tensor, x: Tensor, outputs: Tensor, largest: Tensor, units: torch.dtype) -> Inversion:
    """The inverse with a certificate: its residual must be within the rounding error of the network's units.

    ``outputs`` are :mod:`sinuflow.ops.pixel_affine`'s at x, and ``largest`` is the largest hidden unit of every image.
    The residual is that of y = x + c(x); with log-scales, z is divided by the scale. The scales have rounding errors,
    too, so a correct inverse far from the data, where y and the units are large, may be reported as not converged. A
    tolerance for that product would accept wrong inverses elsewhere.
    """
    y, ladj = unscaled(z, outputs)
    residual = (outputs[: len(z)] - y).abs().amax(0)
    magnitude = torch.maximum(torch.maximum(x.abs().amax(0), y.abs().amax(0)), largest)
    converged = magnitude.isfinite() & (residual <= _ULPS * torch.finfo(units).eps * magnitude)
    return Inversion(x, ladj, torch.ones_like(residual, dtype=torch.int32), residual, converged)


def _transposed(convolution: Convolution) -> Tensor:
    """The matrix that maps gradients of the outputs that depend on a pixel to the gradient of the pixel."""
    outputs, inputs = convolution.centre.shape
    return convolution.before.view(outputs, inputs, -1).transpose(0, 1).flatten(1)


def _empty_maps(like: Tensor, maps: int, pixels: int) -> Tensor:
    """Zeros for all pixels, and for one pixel more, which represents the padding."""
    return like.new_zeros(maps, pixels + 1, like.shape[-1])


def _before_centre(convolution: Convolution, maps: Tensor, indices: Tensor, count: int) -> Tensor:
    """The output of a convolution without the term of the centre."""
    h = torch.addmm(convolution.bias, convolution.before, _gather(maps, indices, count))
    if convolution.context is not None:
        h.view(len(h), count, -1).add_(convolution.context)
    return h


def _gather(maps: Tensor, indices: Tensor, count: int) -> Tensor:
    """Feature maps at the kernel positions of ``count`` pixels, (maps * positions, pixels * images)."""
    return maps.index_select(1, indices).view(len(maps) * len(indices) // count, count * maps.shape[-1])


def _scatter(maps: Tensor, pixels: Tensor, values: Tensor) -> None:
    maps.index_copy_(1, pixels, values.view(len(maps), len(pixels), -1))
