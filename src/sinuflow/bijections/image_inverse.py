"""Inverting the shift of an image, with gradients by the implicit function theorem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..conditioners.pixelcnn import ContextMap, MaskedConvolution, PixelCNN, ResidualBlock
from ..solvers import SolverOptions, parallel_sweeps
from ..solvers.wavefront import (
    Activations,
    Block,
    Convolution,
    PixelNetwork,
    ordered_pixels,
    ordered_pixels_adjoint,
)
from .base import LayerInverse
from .inverse_ops import _first_order_only

#: Rounding that may be left, in ulps of the largest number: outputs are sums of hundreds of products, added up in
#: another order than by the forward map.
_ULPS = 32.0

Answer = tuple[Tensor, Tensor, Tensor, Tensor]  # x, iterations, residual, converged


def to_images(x: Tensor, network: PixelCNN) -> Tensor:
    """Feature-major (D, B) as (B, C, H, W)."""
    return x.mT.reshape(-1, *network.shape)


def from_images(images: Tensor) -> Tensor:
    """(B, C, H, W) as feature-major (D, B)."""
    return images.flatten(1).mT


def substitution(network: PixelCNN, numbers: PixelNetwork, z: Tensor, context: Tensor | None) -> Answer:
    """The certified inverse: ordered substitution, and a look at what the forward map makes of it."""
    with torch.inference_mode():  # half of the time goes into small calls, which are cheaper so
        channels, height, width = network.shape
        x = ordered_pixels(numbers, z.reshape(channels, height * width, -1)).flatten(0, 1)
        active: list[Tensor] = []
        again = x + from_images(network(to_images(x, network), context, active))
        residual = (again - z).abs().amax(0)
        numbers_involved = [x.abs().amax(0), z.abs().amax(0), *(t.amax((1, 2, 3)) for t in active)]
        largest = torch.stack(numbers_involved).amax(0)
        converged = residual <= _ULPS * torch.finfo(z.dtype).eps * largest
    return x.clone(), torch.ones_like(residual, dtype=torch.int32), residual.clone(), converged.clone()


def algorithm_1(network: PixelCNN, z: Tensor, context: Tensor | None, options: SolverOptions) -> Answer:
    """Algorithm 1 of the paper: plain parallel sweeps to given tolerances."""

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        shift = from_images(network(to_images(x, network), None if context is None else context[rows]))
        return x + shift, shift

    def solve(target: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        x = target - shift
        return x, x.isfinite().all(0)

    rtol, atol = options.tolerances(z.dtype)
    root = parallel_sweeps(evaluate, solve, z, rtol=rtol, atol=atol, max_iterations=options.limit)
    return root.x, root.iterations.amax(0), root.residual.amax(0), root.converged.all(0)


class _ImageShiftInverse(torch.autograd.Function):
    r"""From :math:`x + c(x; \theta) = z`: :math:`v = (I + J)^{-T} g` for z, and :math:`-(\partial_\theta c)^T v` for θ.

    The first is ordered substitution once more, from the last pixel to the first; the second, one backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, context: Tensor | None, network: PixelCNN, options: SolverOptions, *parameters: Tensor
    ) -> Answer:
        given = None if context is None else context.mT
        ctx.network, ctx.numbers, ctx.conditional = network, _numbers(network, given), context is not None
        if options.method == "certified":
            answer = substitution(network, ctx.numbers, z, given)
        else:
            answer = algorithm_1(network, z, given, options)
        ctx.save_for_backward(answer[0], *([] if context is None else [context]), *parameters)
        ctx.mark_non_differentiable(*answer[1:])
        return answer

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, *_: Any) -> tuple[Any, ...]:
        x, *rest = (t.detach() for t in ctx.saved_tensors)
        rest = [t.requires_grad_() for t in rest]
        network: PixelCNN = ctx.network
        # The saved parameters, not the module's own: those may have been lent to it for the forward pass alone.
        names = [name for name, _ in network.named_parameters()]
        numbers = dict(zip(names, rest[ctx.conditional :], strict=True))
        active: list[Tensor] = []
        with torch.enable_grad():
            context = rest[0].mT if ctx.conditional else None
            shift = functional_call(network, numbers, (to_images(x, network), context, active))
        v = _adjoint(ctx.numbers, active, grad_x.detach())
        grads = torch.autograd.grad(shift, rest, -to_images(v, network))
        of_context = grads[0] if ctx.conditional else None
        found = (v, of_context, None, None, *grads[ctx.conditional :])
        return _first_order_only(found, (*ctx.saved_tensors, grad_x))


def _adjoint(numbers: PixelNetwork, active: list[Tensor], grad: Tensor) -> Tensor:
    with torch.inference_mode():
        masks = [(t.detach() > 0).to(grad.dtype).flatten(2).permute(1, 2, 0).contiguous() for t in active]
        channels, height, width = numbers.shape
        target = grad.reshape(channels, height * width, -1)
        v = ordered_pixels_adjoint(numbers, Activations(masks[::3], masks[1::3], masks[2::3]), target)
    return v.flatten(0, 1).clone()


def _numbers(network: PixelCNN, context: Tensor | None) -> PixelNetwork:
    """The network as the solver wants it; these are copies of the weights."""

    def convolution(module: MaskedConvolution, given: ContextMap | None = None) -> Convolution:
        added = None if given is None or context is None else given(context).mT
        return Convolution.of(module.masked_weight, module.bias, added)

    blocks = []
    for block in network.blocks:
        assert isinstance(block, ResidualBlock)
        blocks.append(Block(convolution(block.shrink), convolution(block.look, block.given), convolution(block.grow)))
    first = convolution(network.first, network.given)
    return PixelNetwork(network.shape, first, blocks, convolution(network.head))


def image_shift_inverse(network: PixelCNN, z: Tensor, context: Tensor | None, options: SolverOptions) -> LayerInverse:
    """Invert :math:`z = x + c(x)` for a feature-major batch (D, B)."""
    x, iterations, residual, converged = _ImageShiftInverse.apply(z, context, network, options, *network.parameters())
    return LayerInverse(x, z.new_zeros(z.shape[-1]), iterations, residual, converged)
