r"""Inverting the shift of an image, as a PyTorch operator with gradients by the implicit function theorem.

From :math:`x + c(x; \theta) = z`, a gradient g with respect to x becomes :math:`v = (I + J)^{-T} g` with respect to z,
which is ordered substitution once more, from the last pixel to the first; and with respect to θ it becomes
:math:`-(\partial c / \partial \theta)^T v`, one backward pass. As in :mod:`sinuflow.bijections.inverse_ops`,
compiled graphs take the operators, and eager code an autograd function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..kernels.pixel_network import PixelWeights, pixel_network
from ..solvers import SolverOptions, parallel_sweeps
from ..solvers.wavefront import Activations, PixelNetwork, ordered_pixels, ordered_pixels_adjoint
from .base import LayerInverse
from .inverse_ops import _first_order_only
from .pixel_kernels import inverting_kernels_for
from .pixel_shift import Kernels, from_images, fused_inverse, to_images

#: Rounding that may be left, in ulps of the largest number: outputs are sums of hundreds of products, added up in
#: another order than by the forward map.
_ULPS = 32.0

Answer = tuple[Tensor, Tensor, Tensor, Tensor]  # x, iterations, residual, converged


def _image_inverse(
    z: Tensor,
    context: Tensor | None,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    given: Sequence[Tensor],
    shape: Sequence[int],
    method: str,
    rtol: float,
    atol: float,
    limit: int,
) -> Answer:
    numbers = PixelWeights(list(weights), list(biases), list(given))
    if method == "certified":
        found = _substitute(z.contiguous(), None if context is None else context.mT, numbers, shape)
        return _certified(z, *found, z.dtype)
    return _algorithm_1(z.contiguous(), None if context is None else context.mT, numbers, shape, rtol, atol, limit)


def _substitute(
    z: Tensor, context: Tensor | None, numbers: PixelWeights, shape: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ordered substitution: x, what the forward map makes of it, and the largest unit on the way, image by image."""
    with torch.inference_mode():  # half of the time goes into small calls, which are cheaper so
        target = z.detach().view(shape[0], shape[1] * shape[2], z.shape[-1])
        x = ordered_pixels(PixelNetwork.of(shape, numbers, context), target).flatten(0, 1)
        active: list[Tensor] = []
        again = x + from_images(pixel_network(to_images(x, shape), context, numbers, active))
        largest = torch.stack([t.amax((1, 2, 3)) for t in active]).amax(0)
    return x.clone(), again.clone(), largest.clone()


def _certified(z: Tensor, x: Tensor, again: Tensor, largest: Tensor, units: torch.dtype) -> Answer:
    """A residual within rounding, of numbers in the precision of the network's units."""
    residual = (again - z).abs().amax(0)
    involved = torch.maximum(torch.maximum(x.abs().amax(0), z.abs().amax(0)), largest)
    converged = residual <= _ULPS * torch.finfo(units).eps * involved
    return x, torch.ones_like(residual, dtype=torch.int32), residual, converged


def _algorithm_1(
    z: Tensor,
    context: Tensor | None,
    numbers: PixelWeights,
    shape: Sequence[int],
    rtol: float,
    atol: float,
    limit: int,
) -> Answer:
    """Algorithm 1 of the paper: plain parallel sweeps to given tolerances."""

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        shift = from_images(pixel_network(to_images(x, shape), None if context is None else context[rows], numbers))
        return x + shift, shift

    def solve(target: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        x = target - shift
        return x, x.isfinite().all(0)

    root = parallel_sweeps(evaluate, solve, z, rtol=rtol, atol=atol, max_iterations=limit)
    return root.x, root.iterations.amax(0), root.residual.amax(0), root.converged.all(0)


image_inverse_op = torch.library.custom_op("sinuflow::image_inverse", _image_inverse, mutates_args=())


@image_inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Answer:
    row = z.new_empty(z.shape[-1])
    flags = torch.empty_like(row, dtype=torch.bool)
    return z.new_empty(z.shape), torch.empty_like(row, dtype=torch.int32), torch.empty_like(row), flags


def _image_adjoint(grad: Tensor, active: Sequence[Tensor], weights: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """v of shape (D, B), given what :func:`pixel_network` keeps."""
    with torch.inference_mode():
        masks = [(t.detach() > 0).flatten(2).permute(1, 2, 0).contiguous() for t in active]
        unused = [w.new_zeros(len(w)) for w in weights]  # biases do not matter here
        network = PixelNetwork.of(shape, PixelWeights(list(weights), unused, []), None)
        target = grad.detach().contiguous().view(shape[0], shape[1] * shape[2], grad.shape[-1])
        v = ordered_pixels_adjoint(network, Activations(masks[::3], masks[1::3], masks[2::3]), target)
    return v.flatten(0, 1).clone()


image_adjoint_op = torch.library.custom_op("sinuflow::image_adjoint", _image_adjoint, mutates_args=())


@image_adjoint_op.register_fake
def _(grad: Tensor, *_: Any) -> Tensor:
    return grad.new_empty(grad.shape)


def _image_context(ctx: Any, inputs: tuple[Any, ...], output: Answer) -> None:
    _, context, weights, biases, given, ctx.shape, *_ = inputs
    ctx.sizes = len(weights), len(given)
    ctx.conditional = context is not None
    ctx.save_for_backward(output[0], *weights, *biases, *given, *([context] if context is not None else []))


def _image_gradient(ctx: Any, grad_x: Tensor, *_: Any) -> tuple[Any, ...]:
    x, *saved = (t.detach() for t in ctx.saved_tensors)
    depth, told = ctx.sizes
    active: list[Tensor] = []
    with torch.enable_grad():
        saved = [t.requires_grad_() for t in saved]
        numbers = PixelWeights(saved[:depth], saved[depth : 2 * depth], saved[2 * depth : 2 * depth + told])
        context = saved[-1].mT if ctx.conditional else None
        shift = pixel_network(to_images(x, ctx.shape), context, numbers, active)
    adjoint = image_adjoint_op if torch.compiler.is_compiling() else _image_adjoint
    v = adjoint(grad_x.detach(), [t.detach() for t in active], [t.detach() for t in numbers.weights], ctx.shape)
    grads = torch.autograd.grad(shift, saved, -to_images(v, ctx.shape))
    of_numbers = grads[:depth], grads[depth : 2 * depth], grads[2 * depth : 2 * depth + told]
    of_context = grads[-1] if ctx.conditional else None
    return v, of_context, *map(list, of_numbers), None, None, None, None, None


image_inverse_op.register_autograd(_image_gradient, setup_context=_image_context)


class _ImageInverse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        program: Kernels | None,
        z: Tensor,
        context: Tensor | None,
        sizes: tuple[int, int],
        *rest: Any,
    ) -> Answer:
        depth, told = sizes
        numbers, options = rest[: 2 * depth + told], rest[2 * depth + told :]
        inputs = (z, context, numbers[:depth], numbers[depth : 2 * depth], numbers[2 * depth :], *options)
        if program is None:
            answer = _image_inverse(*inputs)
        else:
            weights = PixelWeights(*(list(part) for part in inputs[2:5]))
            answer = _certified(z, *fused_inverse(program, z, context, weights), torch.float32)
        _image_context(ctx, inputs, answer)
        ctx.mark_non_differentiable(*answer[1:])
        return answer

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        v, of_context, of_weights, of_biases, of_given, *rest = _image_gradient(ctx, *grads)
        found = (None, v, of_context, None, *of_weights, *of_biases, *of_given, *rest)
        return _first_order_only(found, (*ctx.saved_tensors, grads[0]))


def image_inverse(network: PixelCNN, z: Tensor, context: Tensor | None, options: SolverOptions) -> LayerInverse:
    """Invert :math:`z = x + c(x)` for a feature-major batch (D, B), with gradients."""
    weights, biases, given = network.numbers()
    rest = (list(network.shape), options.method, *options.tolerances(z.dtype), options.limit)
    if torch.compiler.is_compiling():
        answer = image_inverse_op(z, context, weights, biases, given, *rest)
    else:
        sizes = len(weights), len(given)
        program = inverting_kernels_for(network, z) if options.method == "certified" else None
        answer = _ImageInverse.apply(program, z, context, sizes, *weights, *biases, *given, *rest)
    x, *certificate = answer
    return LayerInverse(x, z.new_zeros(z.shape[-1]), *certificate)
