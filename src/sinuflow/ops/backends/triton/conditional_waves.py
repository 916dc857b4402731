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
from ...waves import ALPHA_MAX, FREQUENCY_MIN, SLOW
from .arithmetic import sigmoid, sin_cos, softmax_parts, softplus, tanh, two_sum, wave_products
from .launch import device_guard, reduce_tiles, tile, tile_slot, tiling
from .newton import advance, is_finite


@device_guard
def forward(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x, parameters = x.contiguous(), parameters.contiguous()
    grid, padded, height = tiling(x)
    value, ladj = torch.empty_like(x), x.new_empty((x.shape[-1], grid[1]))
    _forward[grid](
        x, parameters, value, ladj, x.shape[-1], len(x), **_constants(shape), FEATURES=padded, ROWS=height
    )  # fmt: skip
    return value, reduce_tiles(ladj, Tensor.sum)


@device_guard
def backward(x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the parameters."""
    x, parameters = x.contiguous(), parameters.contiguous()
    grad_x, grad_parameters = torch.empty_like(x), torch.empty_like(parameters)
    grid, padded, height = tiling(x)
    _backward[grid](
        x, parameters, grad_z.contiguous(), grad_ladj.contiguous(), grad_x, grad_parameters, x.shape[-1], len(x),
        **_constants(shape), FEATURES=padded, ROWS=height,
    )  # fmt: skip
    return grad_x, grad_parameters


@device_guard
def inverse(
    z: Tensor, parameters: Tensor, shape: Shape, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, the slope of the forward map, iterations, residual and whether it converged, all of shape (D, B)."""
    z, parameters = z.contiguous(), parameters.contiguous()
    x, slope, residual = torch.empty_like(z), torch.empty_like(z), torch.empty_like(z)
    iterations, converged = torch.empty_like(z, dtype=torch.int32), torch.empty_like(z, dtype=torch.bool)
    grid, padded, height = tiling(z)
    _inverse[grid](
        z, parameters, x, slope, iterations, residual, converged, z.shape[-1], len(z), max_iterations,
        EPSILON=torch.finfo(z.dtype).eps, SLOW=SLOW, **_constants(shape), FEATURES=padded, ROWS=height,
    )  # fmt: skip
    return x, slope, iterations, residual, converged


def _constants(shape: Shape) -> dict[str, float]:
    return {"SCALES": shape.scales, "WAVES": shape.waves, "ALPHA_MAX": ALPHA_MAX, "FREQUENCY_MIN": FREQUENCY_MIN}


@triton.jit
def _transformer(first, stride, j, SCALES: tl.constexpr, WAVES: tl.constexpr):
    """Addresses of the frequencies, phases, weights and the strength of transformer j."""
    count: tl.constexpr = SCALES * WAVES
    frequencies = first + (2 + j * WAVES) * stride
    strength_at = first + (2 + 3 * count + j) * stride
    return frequencies, frequencies + count * stride, frequencies + 2 * count * stride, strength_at


@triton.jit
def _wave(
    frequencies, phases, weights, largest, total, stride, inside, k, FREQUENCY_MIN: tl.constexpr
):  # fmt: skip
    """Wave k: its frequency, weight, and sine and cosine of its phase."""
    a = softplus(tl.load(frequencies + k * stride, inside, 0.0)) + FREQUENCY_MIN
    w = tl.exp(tl.load(weights + k * stride, inside, 0.0) - largest) / total
    sine, cosine = sin_cos(2.0 * tl.load(phases + k * stride, inside, 0.0))
    return a, w, sine, cosine


@triton.jit
def _evaluate(
    x, frequencies, phases, weights, largest, total, stride, inside,
    WAVES: tl.constexpr, FREQUENCY_MIN: tl.constexpr,
):  # fmt: skip
    """The waves at x: value, slope and curvature are x + α rise, 1 - α bend and α bow."""
    rise = tl.zeros_like(x)
    bend = tl.zeros_like(x)
    bow = tl.zeros_like(x)
    for k in tl.static_range(WAVES):
        a, w, sine, cosine = _wave(frequencies, phases, weights, largest, total, stride, inside, k, FREQUENCY_MIN)
        square, product = wave_products(x, a)
        cosine_u = 1.0 - 2.0 * square
        rise += w * (sine * square - cosine * product) / a
        bend += w * (cosine * cosine_u - 2.0 * sine * product)
        bow += 2.0 * a * w * (sine * cosine_u + 2.0 * cosine * product)
    return rise, bend, bow


@triton.jit
def _apply(
    x, rest, first, stride, inside, j,
    SCALES: tl.constexpr, WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr,
):  # fmt: skip
    """Transformer j at x + rest, and its slope."""
    frequencies, phases, weights, strength_at = _transformer(first, stride, j, SCALES, WAVES)
    alpha = ALPHA_MAX * tanh(tl.load(strength_at, inside, 0.0))
    largest, total = softmax_parts(weights, stride, inside, WAVES)
    rise, bend, _ = _evaluate(
        x, frequencies, phases, weights, largest, total, stride, inside, WAVES, FREQUENCY_MIN
    )  # fmt: skip
    slope = 1.0 - alpha * bend
    x, rest = two_sum(x, alpha * rise + slope * rest)
    return x, rest, slope


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x_at, parameters_at, value_at, ladj_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    first = parameters_at + (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    log_scale = 2.0 * tanh(0.5 * tl.load(first + stride, inside, 0.0))
    x = tl.load(x_at + place, inside, 0.0) * tl.exp(log_scale) + tl.load(first, inside, 0.0)
    ladj = log_scale
    rest = tl.zeros_like(x)
    for j in range(SCALES):
        x, rest, slope = _apply(x, rest, first, stride, inside, j, SCALES, WAVES, ALPHA_MAX, FREQUENCY_MIN)
        ladj += tl.log(slope)
    tl.store(value_at + place, x, inside)
    tl.store(ladj_at + tile_slot(row), tl.sum(tl.where(inside, ladj, 0.0), 0), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    x_at, parameters_at, grad_z_at, grad_ladj_at, grad_x_at, grad_parameters_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    count: tl.constexpr = SCALES * WAVES
    offset = (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    first = parameters_at + offset
    out = grad_parameters_at + offset
    grad = tl.load(grad_z_at + place, inside, 0.0)
    of_ladj = tl.where(inside, tl.load(grad_ladj_at + row, row < rows, 0.0)[None, :], 0.0)
    x0 = tl.load(x_at + place, inside, 0.0)
    half = tanh(0.5 * tl.load(first + stride, inside, 0.0))
    scale = tl.exp(2.0 * half)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        x = x0 * scale + tl.load(first, inside, 0.0)
        rest = tl.zeros_like(x)
        for before in range(j):
            x, rest, _ = _apply(x, rest, first, stride, inside, before, SCALES, WAVES, ALPHA_MAX, FREQUENCY_MIN)
        frequencies, phases, weights, strength_at = _transformer(first, stride, j, SCALES, WAVES)
        here = (2 + j * WAVES) * stride
        strength = tanh(tl.load(strength_at, inside, 0.0))
        alpha = ALPHA_MAX * strength
        largest, total = softmax_parts(weights, stride, inside, WAVES)
        rise, bend, bow = _evaluate(
            x, frequencies, phases, weights, largest, total, stride, inside, WAVES, FREQUENCY_MIN
        )  # fmt: skip
        slope = 1.0 - alpha * bend
        of_slope = of_ladj / slope
        # The rise counts with the gradient of the value, the bend with minus that of the slope.
        of_alpha = grad * rise - of_slope * bend
        tl.store(out + (2 + 3 * count + j) * stride, of_alpha * ALPHA_MAX * (1.0 - strength * strength), inside)
        for k in tl.static_range(WAVES):
            a, w, sine, cosine = _wave(frequencies, phases, weights, largest, total, stride, inside, k, FREQUENCY_MIN)
            frequency = tl.load(frequencies + k * stride, inside, 0.0)
            square, product = wave_products(x, a)
            cosine_u = 1.0 - 2.0 * square
            rise_k = (sine * square - cosine * product) / a
            bend_k = cosine * cosine_u - 2.0 * sine * product  # cos(2u + 2b)
            turn_k = sine * cosine_u + 2.0 * cosine * product  # sin(2u + 2b)
            share = alpha * w
            of_a = share * (2.0 * of_slope * x * turn_k - grad * (x * bend_k + rise_k) / a)
            of_angle = share * (grad * (cosine * square + sine * product) / a + of_slope * turn_k)
            of_weight = share * (grad * rise_k - of_slope * bend_k - of_alpha)
            tl.store(out + here + k * stride, of_a * sigmoid(frequency), inside)
            tl.store(out + here + (count + k) * stride, 2.0 * of_angle, inside)
            tl.store(out + here + (2 * count + k) * stride, of_weight, inside)
        grad = grad * slope + of_slope * alpha * bow
    tl.store(out, grad, inside)
    tl.store(out + stride, (grad * x0 * scale + of_ladj) * (1.0 - half * half), inside)
    tl.store(grad_x_at + place, grad * scale, inside)


@triton.jit(do_not_specialize=["rows", "limit"])
def _inverse(
    z_at, parameters_at, x_at, slope_at, iterations_at, residual_at, converged_at, rows, features, limit,
    EPSILON: tl.constexpr, SLOW: tl.constexpr,
    SCALES: tl.constexpr, WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    stride = rows.to(tl.int64)
    first = parameters_at + (feature * (2 + SCALES * (3 * WAVES + 1)))[:, None] * stride + row[None, :]
    x = tl.load(z_at + place, inside, 0.0)
    log_scale = 2.0 * tanh(0.5 * tl.load(first + stride, inside, 0.0))
    whole_slope = tl.exp(log_scale)
    worst = tl.zeros_like(x)
    good = inside | True
    most = tl.zeros((FEATURES, ROWS), tl.int32)
    rest = tl.zeros_like(x)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        frequencies, phases, weights, strength_at = _transformer(first, stride, j, SCALES, WAVES)
        alpha = ALPHA_MAX * tanh(tl.load(strength_at, inside, 0.0))
        largest, total = softmax_parts(weights, stride, inside, WAVES)
        centre = tl.zeros_like(x)
        radius = tl.zeros_like(x)
        tilt = tl.full((FEATURES, ROWS), 1.0, x.dtype)
        for k in tl.static_range(WAVES):
            a, w, sine, cosine = _wave(frequencies, phases, weights, largest, total, stride, inside, k, FREQUENCY_MIN)
            share = alpha * w
            centre += 0.5 * share * sine / a
            radius += 0.5 * tl.abs(share) / a
            slowness = (a / SLOW) * (a / SLOW)
            tilt -= share * cosine / (1.0 + slowness * slowness)
        target = x
        target_rest = rest  # the target is the sum of both
        middle = target - centre
        slack = 16.0 * EPSILON * (tl.abs(middle) + tl.abs(target) + radius)
        low = middle - radius - slack
        high = middle + radius + slack
        lowest = 1.0 - tl.abs(alpha)
        x = target / tilt
        evaluated = tl.zeros((FEATURES, ROWS), tl.int32)
        last = tl.full((FEATURES, ROWS), float("inf"), x.dtype)
        residual = last
        slope = last
        converged = evaluated > 0
        finished = converged
        evaluations = 0
        left = 1
        while left > 0:
            rise, bend, bow = _evaluate(
                x, frequencies, phases, weights, largest, total, stride, inside, WAVES, FREQUENCY_MIN
            )  # fmt: skip
            gap = (x - target) + (alpha * rise - target_rest)
            here_slope = 1.0 - alpha * bend
            curvature = alpha * bow
            evaluations += 1
            x, rest, low, high, last, finished, residual, slope, converged, evaluated = advance(
                x, rest, target, gap, here_slope, curvature, lowest, low, high, last, finished, residual, slope,
                converged, evaluated, evaluations, limit, EPSILON,
            )  # fmt: skip
            left = tl.max(tl.max(tl.where(finished, 0, 1), 1), 0)
        whole_slope *= slope
        worst = tl.maximum(worst, tl.where(residual == residual, residual, float("inf")))
        good = good & converged
        most = tl.maximum(most, evaluated)
    x = ((x - tl.load(first, inside, 0.0)) + rest) * tl.exp(-log_scale)
    finite = is_finite(x)  # the product may overflow
    tl.store(x_at + place, x, inside)
    tl.store(slope_at + place, whole_slope, inside)
    tl.store(iterations_at + place, most, inside)
    tl.store(residual_at + place, tl.where(finite, worst, float("inf")), inside)
    tl.store(converged_at + place, good & finite, inside)
