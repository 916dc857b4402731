r"""Inverting the map of an image, as a PyTorch operator with gradients by the implicit function theorem.

From :math:`F(x; \theta) = z`, a gradient g with respect to x becomes :math:`v = J^{-T} g` with respect to z, and with
respect to θ it becomes :math:`-(\partial F / \partial \theta)^T v`, one backward pass. For a shift,
:math:`F = x + c(x)`, v is found by ordered substitution once more, from the last pixel to the first. So it is with a
scale: for :math:`F = e^s y` with :math:`y = x + c(x)` and :math:`s = 2 \tanh(r(x)/2)`, :math:`v' = e^s v` solves

.. math:: v' + J_c^T v' + J_r^T (k \odot v') = g, \qquad k = y \, (1 - (s/2)^2).

The gradient of the log-determinant :math:`-\sum_i s_i(x)` with respect to x is added to g.

As in :mod:`sinuflow.bijections.inverse_ops`, compiled graphs take the operators, and eager code an autograd function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..ops.pixel_affine import gain, log_scale, scaled, unscaled
from ..ops.pixelcnn import PixelWeights, pixel_network
from ..ops.pixelcnn_fused import Kernels, from_images, fused_inverse, inverse_kernels, reference_outputs, to_images
from ..ops.pixelcnn_inverse import Activations, PixelNetwork, ordered_pixels, ordered_pixels_adjoint
from ..solvers import SolverOptions, parallel_sweeps
from .base import LayerInverse
from .inverse_ops import _first_order_only

#: Rounding that may be left, in ulps of the largest number: outputs are sums of hundreds of products, added up in
#: another order than by the forward map.
_ULPS = 32.0

Answer = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # x, ladj, iterations, residual, converged


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
        return _certified(z, *_substitute(z.contiguous(), context, numbers, shape), z.dtype)
    return _algorithm_1(z.contiguous(), context, numbers, shape, rtol, atol, limit)


def _substitute(
    z: Tensor, context: Tensor | None, numbers: PixelWeights, shape: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ordered substitution: x, what the network tells of it, and the largest unit on the way, image by image."""
    with torch.inference_mode():  # half of the time goes into small calls, which are cheaper so
        target = z.detach().view(shape[0], shape[1] * shape[2], z.shape[-1])
        network = PixelNetwork.of(shape, numbers, None if context is None else context.mT)
        x = ordered_pixels(network, target).flatten(0, 1)
        active: list[Tensor] = []
        told = reference_outputs(x, context, numbers, shape, False, active)
        largest = torch.stack([t.amax((1, 2, 3)) for t in active]).amax(0)
    return x.clone(), told.clone(), largest.clone()


def _certified(z: Tensor, x: Tensor, told: Tensor, largest: Tensor, units: torch.dtype) -> Answer:
    """A residual within rounding, of numbers in the precision of the network's units.

    It is that of y = x + c(x), which is x's own measure: where a scale makes z of it, z is divided by that. How exactly
    a scale is known depends on the units, too, so that far from the data, where both y and units are large, a right
    answer may be refused. To allow for the product of the two would let wrong answers pass elsewhere.
    """
    y, ladj = unscaled(z, told)
    residual = (told[: len(z)] - y).abs().amax(0)
    involved = torch.maximum(torch.maximum(x.abs().amax(0), y.abs().amax(0)), largest)
    converged = involved.isfinite() & (residual <= _ULPS * torch.finfo(units).eps * involved)
    return x, ladj, torch.ones_like(residual, dtype=torch.int32), residual, converged


def _algorithm_1(
    z: Tensor,
    context: Tensor | None,
    numbers: PixelWeights,
    shape: Sequence[int],
    rtol: float,
    atol: float,
    limit: int,
) -> Answer:
    """Algorithm 1 of the paper: plain parallel sweeps to given tolerances, for residuals of z."""

    def outputs(x: Tensor, given: Tensor | None) -> Tensor:
        return from_images(pixel_network(to_images(x, shape), None if given is None else given.mT, numbers))

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        found = outputs(x, None if context is None else context[:, rows])
        # The shift as the network says it: of x + c(x), too little may be left of it where sweeps are far away.
        return scaled(torch.cat([x + found[: len(x)], found[len(x) :]]), len(x)).z, found

    def solve(target: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        x = unscaled(target, found).z - found[: len(target)]
        return x, x.isfinite().all(0)

    root = parallel_sweeps(evaluate, solve, z, rtol=rtol, atol=atol, max_iterations=limit)
    affine = len(numbers.biases[-1]) > shape[0]
    ladj = unscaled(z, outputs(root.x, context)).ladj if affine else z.new_zeros(z.shape[-1])
    return root.x, ladj, root.iterations.amax(0), root.residual.amax(0), root.converged.all(0)


image_inverse_op = torch.library.custom_op("sinuflow::image_inverse", _image_inverse, mutates_args=())


@image_inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Answer:
    row = z.new_empty(z.shape[-1])
    flags = torch.empty_like(row, dtype=torch.bool)
    return z.new_empty(z.shape), row, torch.empty_like(row, dtype=torch.int32), torch.empty_like(row), flags


def _image_adjoint(
    grad: Tensor, gain: Tensor | None, active: Sequence[Tensor], weights: Sequence[Tensor], shape: Sequence[int]
) -> Tensor:
    """v, or with a gain k of a scale v', of shape (D, B), given what :func:`pixel_network` keeps."""
    with torch.inference_mode():
        masks = [(t.detach() > 0).flatten(2).permute(1, 2, 0).contiguous() for t in active]
        unused = [w.new_zeros(len(w)) for w in weights]  # biases do not matter here
        network = PixelNetwork.of(shape, PixelWeights(list(weights), unused, []), None)
        size = shape[0], shape[1] * shape[2], grad.shape[-1]
        target, gains = (None if t is None else t.detach().contiguous().view(size) for t in (grad, gain))
        assert target is not None
        v = ordered_pixels_adjoint(network, Activations(masks[::3], masks[1::3], masks[2::3]), target, gains)
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


def _image_gradient(ctx: Any, grad_x: Tensor, grad_ladj: Tensor, *_: Any) -> tuple[Any, ...]:
    x, *saved = (t.detach() for t in ctx.saved_tensors)
    depth, known = ctx.sizes
    active: list[Tensor] = []
    with torch.enable_grad():
        x, *saved = (t.requires_grad_() for t in (x, *saved))
        numbers = PixelWeights(saved[:depth], saved[depth : 2 * depth], saved[2 * depth : 2 * depth + known])
        told = reference_outputs(x, saved[-1] if ctx.conditional else None, numbers, ctx.shape, False, active)
        z, ladj = scaled(told, len(x))
    adjoint = image_adjoint_op if torch.compiler.is_compiling() else _image_adjoint
    rest = [t.detach() for t in active], [t.detach() for t in numbers.weights], ctx.shape
    if len(told) == len(x):
        v = adjoint(grad_x.detach(), None, *rest)
        grads = torch.autograd.grad(z, saved, -v)
    else:
        (of_x,) = torch.autograd.grad(ladj, x, -grad_ladj, retain_graph=True)
        y, free = told.detach().split(len(x))
        v = adjoint(grad_x.detach() + of_x, gain(y, free), *rest) * torch.exp(-log_scale(free))
        grads = torch.autograd.grad((z, ladj), saved, (-v, -grad_ladj))
    of_numbers = grads[:depth], grads[depth : 2 * depth], grads[2 * depth : 2 * depth + known]
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
        depth, known = sizes
        numbers, options = rest[: 2 * depth + known], rest[2 * depth + known :]
        inputs = (z, context, numbers[:depth], numbers[depth : 2 * depth], numbers[2 * depth :], *options)
        if program is None:
            answer = _image_inverse(*inputs)
        else:
            weights = PixelWeights(*(list(part) for part in inputs[2:5]))
            answer = _certified(z, *fused_inverse(program, z, context, weights), torch.float32)
        _image_context(ctx, inputs, answer)
        ctx.mark_non_differentiable(*answer[2:])
        return answer

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        v, of_context, of_weights, of_biases, of_given, *rest = _image_gradient(ctx, *grads)
        found = (None, v, of_context, None, *of_weights, *of_biases, *of_given, *rest)
        return _first_order_only(found, (*ctx.saved_tensors, *grads[:2]))


def image_inverse(network: PixelCNN, z: Tensor, context: Tensor | None, options: SolverOptions) -> LayerInverse:
    """Invert the map of a network for a feature-major batch (D, B), with gradients."""
    weights, biases, given = network.numbers()
    rest = (list(network.shape), options.method, *options.tolerances(z.dtype), options.limit)
    if torch.compiler.is_compiling():
        answer = image_inverse_op(z, context, weights, biases, given, *rest)
    else:
        sizes = len(weights), len(given)
        program = inverse_kernels(network.network(), z) if options.method == "certified" else None
        answer = _ImageInverse.apply(program, z, context, sizes, *weights, *biases, *given, *rest)
    return LayerInverse(*answer)
