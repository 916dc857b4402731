r"""Conditional waves: every row has its own unconstrained parameters, (D, P, B), straight from the network.

.. math:: z = \tau_n \circ \dots \circ \tau_1 (e^s x + d), \qquad s = 2 \tanh(s'/2)

The parameters of a feature are d, s', then for all scales and waves the frequencies, the phases and the weights, then
the strengths. One launch constrains them and evaluates the map and its log-determinant. The backward pass recomputes
all intermediate values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...conditional_waves import Shape
from .arithmetic import LOG_SCALE_MAX, bounded_log_scale, tanh, two_sum, wave_products
from .launch import device_guard, reduce_tiles, tile, tile_slot, tiling
from .waves import ALPHA_MAX, evaluate, softmax, solve, wave


@device_guard
def forward(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x, parameters = x.contiguous(), parameters.contiguous()
    grid, size = tiling(x)
    value, ladj = torch.empty_like(x), x.new_empty((x.shape[-1], grid[1]))
    _forward[grid](x, parameters, value, ladj, x.shape[-1], len(x), *shape, **size)
    return value, reduce_tiles(ladj, Tensor.sum)


@device_guard
def backward(x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the parameters."""
    inputs = [t.contiguous() for t in (x, parameters, grad_z, grad_ladj)]
    grad_x, grad_parameters = torch.empty_like(inputs[0]), torch.empty_like(inputs[1])
    grid, size = tiling(x)
    _backward[grid](*inputs, grad_x, grad_parameters, x.shape[-1], len(x), *shape, **size)
    return grad_x, grad_parameters


@device_guard
def inverse(z: Tensor, parameters: Tensor, shape: Shape, max_iterations: int) -> tuple[Tensor, ...]:
    """x, the slope of the forward map, iterations, residual and whether it converged, all of shape (D, B)."""
    z, parameters = z.contiguous(), parameters.contiguous()
    kinds = z.dtype, z.dtype, torch.int32, z.dtype, torch.bool
    results = tuple(torch.empty_like(z, dtype=kind) for kind in kinds)
    grid, size = tiling(z)
    _inverse[grid](
        z, parameters, *results, z.shape[-1], len(z), max_iterations, torch.finfo(z.dtype).eps, *shape, **size
    )
    return results


@triton.jit
def _transformer(parameters_at, first, stride, inside, j, SCALES: tl.constexpr, WAVES: tl.constexpr):
    """Transformer j: the offset of its waves, addresses of phases and weights, their softmax, tanh of its strength."""
    count: tl.constexpr = SCALES * WAVES
    at = first + (2 + j * WAVES) * stride
    q_at = parameters_at + 2 * count * stride
    largest, share = softmax(q_at + at, stride, inside, WAVES)
    strength = tanh(tl.load(parameters_at + first + (2 + 3 * count + j) * stride, inside, 0.0))
    return at, parameters_at + count * stride, q_at, largest, share, strength


@triton.jit
def _apply(x, rest, parameters_at, first, stride, inside, j, SCALES: tl.constexpr, WAVES: tl.constexpr):
    """Transformer j at x + rest, and its slope."""
    at, p_at, q_at, largest, share, strength = _transformer(parameters_at, first, stride, inside, j, SCALES, WAVES)
    factor = strength * ALPHA_MAX * share
    rise, bend, _ = evaluate(x, 0.0, parameters_at, p_at, q_at, at, stride, inside, WAVES, largest, factor, True)
    slope = 1.0 - bend
    x, rest = two_sum(x, rise + slope * rest)
    return x, rest, slope


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x_at, parameters_at, value_at, ladj_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    first = (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    log_scale = bounded_log_scale(tl.load(parameters_at + first + stride, inside, 0.0))
    x = tl.load(x_at + place, inside, 0.0) * tl.exp(log_scale) + tl.load(parameters_at + first, inside, 0.0)
    ladj = log_scale
    rest = tl.zeros_like(x)
    for j in range(SCALES):
        x, rest, slope = _apply(x, rest, parameters_at, first, stride, inside, j, SCALES, WAVES)
        ladj += tl.log(slope)
    tl.store(value_at + place, x, inside)
    tl.store(ladj_at + tile_slot(row), tl.sum(tl.where(inside, ladj, 0.0), 0), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    x_at, parameters_at, grad_z_at, grad_ladj_at, grad_x_at, grad_parameters_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    count: tl.constexpr = SCALES * WAVES
    first = (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    out = grad_parameters_at + first
    grad = tl.load(grad_z_at + place, inside, 0.0)
    of_ladj = tl.where(inside, tl.load(grad_ladj_at + row, row < rows, 0.0)[None, :], 0.0)
    x0 = tl.load(x_at + place, inside, 0.0)
    half = tanh(tl.load(parameters_at + first + stride, inside, 0.0) * (1.0 / LOG_SCALE_MAX))
    scale = tl.exp(half * LOG_SCALE_MAX)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        x = x0 * scale + tl.load(parameters_at + first, inside, 0.0)
        rest = tl.zeros_like(x)
        for before in range(j):
            x, rest, _ = _apply(x, rest, parameters_at, first, stride, inside, before, SCALES, WAVES)
        at, p_at, q_at, largest, share, strength = _transformer(parameters_at, first, stride, inside, j, SCALES, WAVES)
        alpha = strength * ALPHA_MAX
        # Of the waves without the factor α, by which the gradient of the strength would have to be divided.
        rise, bend, bow = evaluate(x, 0.0, parameters_at, p_at, q_at, at, stride, inside, WAVES, largest, share, True)
        slope = 1.0 - alpha * bend
        of_slope = of_ladj / slope
        # The rise counts with the gradient of the value, the bend with minus that of the slope.
        of_alpha = grad * rise - of_slope * bend
        strength_gradient = of_alpha * (1.0 - strength * strength) * ALPHA_MAX
        tl.store(out + (2 + 3 * count + j) * stride, strength_gradient, inside)
        for k in tl.static_range(WAVES):
            at_k = at + k * stride
            a, p, q, w = wave(x, parameters_at, p_at, q_at, at_k, inside, largest, share, True)
            square, product = wave_products(x, a)
            cosine = 1.0 - 2.0 * square
            rise_k = (q * square - p * product) / a
            bend_k = p * cosine - 2.0 * q * product  # w cos(2u + 2b)
            turn_k = q * cosine + 2.0 * p * product  # w sin(2u + 2b)
            of_a = alpha * (2.0 * of_slope * x * turn_k - grad * (x * bend_k + rise_k) / a)
            of_angle = alpha * (grad * (p * square + q * product) / a + of_slope * turn_k)
            of_weight = alpha * (grad * rise_k - of_slope * bend_k - w * of_alpha)
            here = grad_parameters_at + at_k
            tl.store(here, of_a * tl.sigmoid(tl.load(parameters_at + at_k, inside, 0.0)), inside)
            tl.store(here + count * stride, 2.0 * of_angle, inside)
            tl.store(here + 2 * count * stride, of_weight, inside)
        grad = grad * slope + of_slope * alpha * bow
    tl.store(out, grad, inside)
    tl.store(out + stride, (grad * x0 * scale + of_ladj) * (1.0 - half * half), inside)
    tl.store(grad_x_at + place, grad * scale, inside)


@triton.jit(do_not_specialize=["rows", "limit"])
def _inverse(
    z_at, parameters_at, x_at, slope_at, iterations_at, residual_at, converged_at, rows, features, limit,
    EPSILON: tl.constexpr, SCALES: tl.constexpr, WAVES: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    first = (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    x = tl.load(z_at + place, inside, 0.0)
    log_scale = bounded_log_scale(tl.load(parameters_at + first + stride, inside, 0.0))
    zero = tl.zeros_like(x)
    whole_slope = tl.exp(log_scale)
    worst, rest = zero, zero
    good = inside | True
    most = tl.zeros((FEATURES, ROWS), tl.int32)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        at, p_at, q_at, largest, share, strength = _transformer(parameters_at, first, stride, inside, j, SCALES, WAVES)
        x, rest, slope, residual, converged, evaluations = solve(
            x, rest, zero, parameters_at, p_at, q_at, at, stride, inside, limit, EPSILON, WAVES,
            largest, strength * ALPHA_MAX * share, True,
        )  # fmt: skip
        whole_slope *= slope
        worst = tl.maximum(worst, tl.where(residual == residual, residual, float("inf")))
        good = good & converged
        most = tl.maximum(most, evaluations)
    x = ((x - tl.load(parameters_at + first, inside, 0.0)) + rest) * tl.exp(-log_scale)
    finite = tl.abs(x) < float("inf")  # the product may overflow
    tl.store(x_at + place, x, inside)
    tl.store(slope_at + place, whole_slope, inside)
    tl.store(iterations_at + place, most, inside)
    tl.store(residual_at + place, tl.where(finite, worst, float("inf")), inside)
    tl.store(converged_at + place, good & finite, inside)
