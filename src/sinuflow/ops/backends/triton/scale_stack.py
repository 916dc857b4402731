r"""The stack of sinusoidal transformers whose waves all rows share: forward, backward and inverse.

Forward and inverse also take float64 rows with float32 waves, for those who want to lose nothing between layers;
log-determinants are float32 then.

The formulas are those of :mod:`sinuflow.ops.waves`; the plain version is
:mod:`sinuflow.ops.scale_stack`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...waves import ALPHA_MAX, SLOW, Waves
from .arithmetic import exact_sum, wave_products
from .search import advance, is_finite
from .tiles import by_row, on_its_device, own_row, tile, tiling

#: Rows that a warp of the backward pass takes at least, and at most; and bytes of a table of waves by rows, which is in
#: its registers several times.
_WARP, _MOST_ROWS, _TABLE = 32, 128, 2048


@on_its_device
def forward(x: Tensor, waves: Waves, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The value (D, B), the log-determinant (B,), and with ``keep`` the input of every transformer, (n, D, B)."""
    x = x.contiguous()
    count, features, width, _ = waves.frequency.shape
    grid, padded, height = tiling(x)
    value, ladj = torch.empty_like(x), waves.shift.new_empty((x.shape[-1], grid[1]))
    inputs = x.new_empty((count, *x.shape) if keep else (0,))
    _forward[grid](
        x, *_contiguous(waves), value, ladj, inputs, x.shape[-1], features,
        SCALES=count, WAVES=width, KEEP=keep, FINE=waves.shift.dtype != x.dtype, FEATURES=padded, ROWS=height,
        num_warps=_warps(x),
    )  # fmt: skip
    return value, by_row(ladj, Tensor.sum), inputs


@on_its_device
def backward(inputs: Tensor, waves: Waves, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Waves]:
    """The chain rule through :func:`forward`: gradients of x and of the waves."""
    count, features, width, _ = waves.frequency.shape
    grad_z, grad_ladj = grad_z.contiguous(), grad_ladj.contiguous()
    grad_x, rows = torch.empty_like(grad_z), grad_z.shape[-1]
    # A warp has one feature of some rows, so that its sums over rows need nobody else. They are added up in a fixed
    # order, so that results repeat.
    padded = triton.next_power_of_2(width)
    height = max(_WARP, min(_MOST_ROWS, triton.next_power_of_2(rows), _TABLE // (padded * grad_z.element_size())))
    parts = max(1, triton.cdiv(rows, height))
    sums = grad_z.new_empty((parts, (3 * width + 1) * count * features))
    _backward[(features * parts,)](
        inputs, *_contiguous(waves)[:3], grad_z, grad_ladj, grad_x, sums, rows, features,
        SCALES=count, WAVES=width, PADDED=padded, ROWS=height, num_warps=1,
    )  # fmt: skip
    total = sums[0] if parts == 1 else sums.sum(0)
    *of_waves, of_d = total.split([waves.frequency.numel()] * 3 + [waves.shift.numel()])
    of_a, of_p, of_q = (t.view(waves.frequency.shape) for t in of_waves)
    return grad_x, Waves(of_a, of_p, of_q, of_d.view(waves.shift.shape))


@on_its_device
def inverse(z: Tensor, waves: Waves, max_iterations: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (D, B); for every row the inverse's log-determinant, the iterations, the residual, and whether it converged."""
    z = z.contiguous()
    count, features, width, _ = waves.frequency.shape
    grid, padded, height = tiling(z)
    x, row = torch.empty_like(z), z.new_empty((z.shape[-1], grid[1]))
    ladj, residual = torch.empty_like(row, dtype=waves.shift.dtype), torch.empty_like(row)
    iterations = torch.empty_like(row, dtype=torch.int32)
    converged = torch.empty_like(row, dtype=torch.bool)
    _inverse[grid](
        z, *_contiguous(waves), x, ladj, iterations, residual, converged, z.shape[-1], features, max_iterations,
        SCALES=count, WAVES=width, EPSILON=torch.finfo(z.dtype).eps, ALPHA_MAX=ALPHA_MAX, SLOW=SLOW,
        FINE=waves.shift.dtype != z.dtype, FEATURES=padded, ROWS=height, num_warps=_warps(z),
    )  # fmt: skip
    most, worst = by_row(iterations, Tensor.amax), by_row(residual, Tensor.amax)
    return x, by_row(ladj, Tensor.sum), most, worst, by_row(converged, Tensor.all)


def _warps(x: Tensor) -> int:
    """Of a tile: doubles take so many registers that few others would have room beside a thread with four of them."""
    return 8 if x.dtype == torch.float64 else 4


def _contiguous(waves: Waves) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in waves)


@triton.jit
def _wave(x, a_at, p_at, q_at, at, here):
    """The constrained parameters of one wave of every feature, in the precision of x."""
    a = tl.load(a_at + at, here, 1.0)[:, None].to(x.dtype)
    p = tl.load(p_at + at, here, 0.0)[:, None].to(x.dtype)
    q = tl.load(q_at + at, here, 0.0)[:, None].to(x.dtype)
    return a, p, q


@triton.jit
def _evaluate(x, a_at, p_at, q_at, d_at, place, here, WAVES: tl.constexpr, FINE: tl.constexpr):
    """The rise τ(x) - x, slope and curvature of the transformers that ``place`` counts.

    Added to x one by one, every wave would be rounded as x is.
    """
    rise = tl.zeros_like(x) + tl.load(d_at + place, here, 0.0)[:, None]
    slope = tl.zeros_like(x) + 1.0
    curvature = tl.zeros_like(x)
    if FINE:  # far beyond any pixel, where float32 has lost the phase of waves, they stay as they are; NaN stays, too
        x = tl.where(x > 67108864.0, 67108864.0, x)
        x = tl.where(x < -67108864.0, -67108864.0, x)
    for k in tl.static_range(WAVES):
        a, p, q = _wave(x, a_at, p_at, q_at, place * WAVES + k, here)
        square, product = wave_products(x, a, FINE)
        cosine = 1.0 - 2.0 * square
        # A division of doubles takes as long as their sine. So they are divided as single numbers, and a step of
        # Newton's leaves some 1e-14 of the rise, which is the same both ways.
        if FINE:
            shrink = (1.0 / a.to(tl.float32)).to(x.dtype)
            shrink *= 2.0 - a * shrink
            rise += (q * shrink) * square - (p * shrink) * product
        else:
            rise += (q * square - p * product) / a
        slope -= p * cosine - 2.0 * q * product
        curvature += 2.0 * a * (q * cosine + 2.0 * p * product)
    return rise, slope, curvature


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x_at, a_at, p_at, q_at, d_at, value_at, ladj_at, inputs_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, KEEP: tl.constexpr, FINE: tl.constexpr, FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    here = feature < features
    x = tl.load(x_at + place, inside, 0.0)
    log_slope = tl.zeros((FEATURES, ROWS), ladj_at.dtype.element_ty)
    rest = tl.zeros((FEATURES, ROWS), x.dtype)
    for j in range(SCALES):
        if KEEP:
            tl.store(inputs_at + j * features * rows.to(tl.int64) + place, x, inside)
        rise, slope, _ = _evaluate(x, a_at, p_at, q_at, d_at, j * features + feature, here, WAVES, FINE)
        x, rest = exact_sum(x, rise + slope * rest)
        log_slope += tl.log(slope.to(log_slope.dtype))
    tl.store(value_at + place, x, inside)
    tl.store(ladj_at + own_row(row), tl.sum(tl.where(inside, log_slope, 0.0), 0), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    inputs_at, a_at, p_at, q_at, grad_z_at, grad_ladj_at, grad_x_at, sums_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0) % features
    part = (tl.program_id(0) // features).to(tl.int64)
    row = part * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    size = features * rows.to(tl.int64)
    place = feature * rows.to(tl.int64) + row
    grad = tl.load(grad_z_at + place, inside, 0.0)
    of_ladj = tl.load(grad_ladj_at + row, inside, 0.0)
    wave = tl.arange(0, PADDED)
    exists = wave < WAVES
    count = SCALES * features * WAVES  # of numbers of one kind
    sums = sums_at + part * (3 * count + SCALES * features)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        x = tl.load(inputs_at + j * size + place, inside, 0.0)
        at = (j * features + feature) * WAVES + wave
        a = tl.load(a_at + at, exists, 1.0)
        p = tl.load(p_at + at, exists, 0.0)[:, None]
        q = tl.load(q_at + at, exists, 0.0)[:, None]
        shrink = (1.0 / a)[:, None]
        a = a[:, None]
        square, product = wave_products(x[None, :], a)
        cosine = 1.0 - 2.0 * square
        # By u = a x, the slope changes by twice the turn, and the rise by minus the bend over a.
        turn = q * cosine + 2.0 * p * product
        bend = p * cosine - 2.0 * q * product
        rise = (q * square - p * product) * shrink
        slope = 1.0 - tl.sum(bend, 0)
        of_slope = of_ladj / slope
        of_rise = grad[None, :] * shrink
        of_turn = 2.0 * of_slope * x
        of_a = of_turn[None, :] * turn - of_rise * (x[None, :] * bend + rise)
        of_p = -(of_rise * product + of_slope[None, :] * cosine)
        of_q = of_rise * square + 2.0 * of_slope[None, :] * product
        tl.store(sums + at, tl.sum(of_a, 1), exists)
        tl.store(sums + count + at, tl.sum(of_p, 1), exists)
        tl.store(sums + 2 * count + at, tl.sum(of_q, 1), exists)
        tl.store(sums + 3 * count + j * features + feature, tl.sum(grad, 0))
        grad = grad * slope + of_slope * tl.sum(2.0 * a * turn, 0)
    tl.store(grad_x_at + place, grad, inside)


@triton.jit(do_not_specialize=["rows", "limit"])
def _inverse(
    z_at, a_at, p_at, q_at, d_at, x_at, ladj_at, iterations_at, residual_at, converged_at, rows, features, limit,
    SCALES: tl.constexpr, WAVES: tl.constexpr, EPSILON: tl.constexpr, ALPHA_MAX: tl.constexpr, SLOW: tl.constexpr,
    FINE: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    here = feature < features
    x = tl.load(z_at + place, inside, 0.0)
    log_slope = tl.zeros((FEATURES, ROWS), ladj_at.dtype.element_ty)
    worst = tl.zeros((FEATURES, ROWS), x.dtype)
    good = inside | True
    most = tl.zeros((FEATURES, ROWS), tl.int32)
    rest = tl.zeros((FEATURES, ROWS), x.dtype)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        # What is known of the function everywhere: bounds of its slope, and how far it is from x + centre.
        shift = tl.load(d_at + j * features + feature, here, 0.0)[:, None].to(x.dtype)
        spread = tl.zeros_like(shift)
        centre = shift
        radius = tl.zeros_like(shift)
        tilt = tl.zeros_like(shift) + 1.0
        for k in tl.static_range(WAVES):
            a, p, q = _wave(x, a_at, p_at, q_at, (j * features + feature) * WAVES + k, here)
            size = tl.sqrt(p * p + q * q)
            spread += size
            centre += 0.5 * q / a
            radius += 0.5 * size / a
            slowness = (a / SLOW) * (a / SLOW)
            tilt -= p / (1.0 + slowness * slowness)
        lowest = 1.0 - tl.minimum(spread, ALPHA_MAX)
        target = x
        beyond = rest  # the target is both together
        middle = target - centre
        slack = 16.0 * EPSILON * (tl.abs(middle) + tl.abs(target) + radius)
        low = middle - radius - slack
        high = middle + radius + slack
        x = (target - shift) / tilt
        used = tl.zeros((FEATURES, ROWS), tl.int32)
        last = tl.full((FEATURES, ROWS), float("inf"), x.dtype)
        residual = last
        slope = last
        done = used > 0
        settled = done
        evaluations = 0
        left = 1
        while left > 0:
            rise, here_slope, curvature = _evaluate(
                x, a_at, p_at, q_at, d_at, j * features + feature, here, WAVES, FINE
            )
            gap = (x - target) + (rise - beyond)
            evaluations += 1
            x, rest, low, high, last, settled, residual, slope, done, used = advance(
                x, rest, target, gap, here_slope, curvature, lowest, low, high, last, settled, residual, slope, done,
                used, evaluations, limit, EPSILON,
            )  # fmt: skip
            left = tl.max(tl.max(tl.where(settled, 0, 1), 1), 0)
        log_slope += tl.log(slope.to(log_slope.dtype))
        worst = tl.maximum(worst, tl.where(residual == residual, residual, float("inf")))
        good = good & done
        most = tl.maximum(most, used)
    finite = is_finite(x)
    worst = tl.where(finite, worst, float("inf"))
    good = good & finite
    tl.store(x_at + place, x, inside)
    tl.store(ladj_at + own_row(row), -tl.sum(tl.where(inside, log_slope, 0.0), 0), row < rows)
    tl.store(iterations_at + own_row(row), tl.max(tl.where(inside, most, 0), 0), row < rows)
    tl.store(residual_at + own_row(row), tl.max(tl.where(inside, worst, 0.0), 0), row < rows)
    tl.store(converged_at + own_row(row), tl.min(tl.where(good | ~inside, 1, 0), 0) == 1, row < rows)
