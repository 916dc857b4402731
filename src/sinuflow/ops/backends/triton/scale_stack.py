r"""A stack of sinusoidal transformers, with waves that all rows share or one set per row: forward, backward, inverse.

Forward and inverse also take float64 rows with float32 waves, for high precision between layers; log-determinants are
float32 then. The formulas are those of :mod:`sinuflow.ops.waves`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arithmetic import two_sum, wave_products
from .launch import device_guard, per_row, reduce_tiles, tile, tile_slot, tiling
from .waves import evaluate, solve, wave

#: Rows of a program of the backward pass, at least (one warp) and at most; and the bytes of its table of waves by rows,
#: of which registers hold several.
_WARP, _MAX_ROWS, _TABLE_BYTES = 32, 128, 2048


@device_guard
def forward(x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, keep: bool = False) -> tuple[Tensor, ...]:
    """The value (D, B), the log-determinant (B,), and with ``keep`` the input of every transformer, (n, D, B)."""
    x = x.contiguous()
    grid, size = tiling(x)
    value, ladj = torch.empty_like(x), d.new_empty((x.shape[-1], grid[1]))
    inputs = x.new_empty((len(a), *x.shape) if keep else (0,))
    _forward[grid](
        x, *_contiguous(a, p, q, d), value, ladj, inputs, x.shape[-1], len(x),
        KEEP=keep, MIXED=d.dtype != x.dtype, num_warps=_warps(x), **size, **_shape(a),
    )  # fmt: skip
    results = value, reduce_tiles(ladj, Tensor.sum)
    return (*results, inputs) if keep else results


@device_guard
def backward(
    x: Tensor,
    a: Tensor,
    p: Tensor,
    q: Tensor,
    d: Tensor,
    grad_z: Tensor,
    grad_ladj: Tensor,
    inputs: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of x and of the waves; ``inputs`` are those that :func:`forward` keeps."""
    if inputs is None:
        inputs = forward(x, a, p, q, d, keep=True)[2]
    shape, waves = _shape(a), _contiguous(a, p, q, d)
    grad_z, grad_ladj = grad_z.contiguous(), grad_ladj.contiguous()
    grad_x, (features, rows) = torch.empty_like(grad_z), grad_z.shape
    # A program has one warp and one feature, so that sums over rows stay within the warp. Partial sums are added in a
    # fixed order, so that results are deterministic.
    padded = triton.next_power_of_2(shape["WAVES"])
    table = _TABLE_BYTES if shape["SHARED"] else _TABLE_BYTES // 2
    height = max(_WARP, min(_MAX_ROWS, triton.next_power_of_2(rows), table // (padded * grad_z.element_size())))
    parts = max(1, triton.cdiv(rows, height))
    sizes = [t.numel() for t in waves]
    gradients = grad_z.new_empty((parts if shape["SHARED"] else 1, sum(sizes)))
    _backward[(features * parts,)](
        inputs, *waves[:3], grad_z, grad_ladj, grad_x, gradients, rows, features,
        PADDED=padded, ROWS=height, num_warps=1, **shape,
    )  # fmt: skip
    total = gradients[0] if len(gradients) == 1 else gradients.sum(0)
    of_a, of_p, of_q, of_d = total.split(sizes)
    of_d = of_d.view(*d.shape[:-1], -1).sum_to_size(d.shape)
    return grad_x, of_a.view_as(a), of_p.view_as(p), of_q.view_as(q), of_d


@device_guard
def inverse(z: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, max_iterations: int) -> tuple[Tensor, ...]:
    """x (D, B); for every row the inverse's log-determinant, the iterations, the residual, and whether it converged."""
    z = z.contiguous()
    grid, size = tiling(z)
    kinds = d.dtype, torch.int32, z.dtype, torch.bool
    x, rows = torch.empty_like(z), [z.new_empty((z.shape[-1], grid[1]), dtype=kind) for kind in kinds]
    _inverse[grid](
        z, *_contiguous(a, p, q, d), x, *rows, z.shape[-1], len(z), max_iterations,
        EPSILON=torch.finfo(z.dtype).eps, MIXED=d.dtype != z.dtype, num_warps=_warps(z), **size, **_shape(a),
    )  # fmt: skip
    reductions: tuple[Callable[..., Tensor], ...] = (Tensor.sum, Tensor.amax, Tensor.amax, Tensor.all)
    return x, *map(reduce_tiles, rows, reductions)


def _shape(a: Tensor) -> dict[str, int]:
    return {"SCALES": len(a), "WAVES": a.shape[-2], "SHARED": a.shape[-1] == 1}


def _warps(x: Tensor) -> int:
    """Warps of a tile: with float64, four elements per thread would leave too few registers for other warps."""
    return 8 if x.dtype == torch.float64 else 4


def _contiguous(a: Tensor, p: Tensor, q: Tensor, d: Tensor) -> list[Tensor]:
    return [t.contiguous() for t in (a, p, q, d.expand(*d.shape[:-1], a.shape[-1]))]


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x_at, a_at, p_at, q_at, d_at, value_at, ladj_at, inputs_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, SHARED: tl.constexpr, KEEP: tl.constexpr, MIXED: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    here = (feature < features)[:, None] if SHARED else inside
    x = tl.load(x_at + place, inside, 0.0)
    log_slope = tl.zeros((FEATURES, ROWS), ladj_at.dtype.element_ty)
    rest = tl.zeros((FEATURES, ROWS), x.dtype)
    stride = 1 if SHARED else rows.to(tl.int64)
    for j in range(SCALES):
        if KEEP:
            tl.store(inputs_at + j * features * rows.to(tl.int64) + place, x, inside)
        transformer = j * features + feature
        shift = tl.load(d_at + per_row(transformer, row, rows, SHARED), here, 0.0).to(x.dtype)
        at = per_row(transformer * WAVES, row, rows, SHARED)
        rise, bend, _ = evaluate(x, shift, a_at, p_at, q_at, at, stride, here, WAVES, MIXED=MIXED)
        slope = 1.0 - bend
        x, rest = two_sum(x, rise + slope * rest)
        log_slope += tl.log(slope.to(log_slope.dtype))
    tl.store(value_at + place, x, inside)
    tl.store(ladj_at + tile_slot(row), tl.sum(tl.where(inside, log_slope, 0.0), 0), row < rows)


@triton.jit
def _store_gradient(to, at, gradient, exists, row, rows, inside, SHARED: tl.constexpr):
    """The gradient of a wave: summed over rows if they share it."""
    if SHARED:
        tl.store(to + at, tl.sum(gradient, 1), exists)
    else:
        tl.store(to + per_row(at, row, rows, SHARED), gradient, exists[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows"])
def _backward(
    inputs_at, a_at, p_at, q_at, grad_z_at, grad_ladj_at, grad_x_at, gradients_at, rows, features,
    SCALES: tl.constexpr, WAVES: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0) % features
    part = (tl.program_id(0) // features).to(tl.int64)
    row = part * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    size = features * rows.to(tl.int64)
    place = feature * rows.to(tl.int64) + row
    grad = tl.load(grad_z_at + place, inside, 0.0)
    of_ladj = tl.load(grad_ladj_at + row, inside, 0.0)
    index = tl.arange(0, PADDED)
    exists = index < WAVES
    here = exists[:, None] if SHARED else exists[:, None] & inside[None, :]
    # Gradients of a, p and q, then of d; of shared waves, every part of the rows has its own.
    count = SCALES * WAVES * (features if SHARED else size)
    gradients = gradients_at + (part * (3 * count + SCALES * features) if SHARED else 0)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        x = tl.load(inputs_at + j * size + place, inside, 0.0)
        transformer = j * features + feature
        at = transformer * WAVES + index
        a, p, q, _ = wave(x, a_at, p_at, q_at, per_row(at, row, rows, SHARED), here)
        inverse = 1.0 / a
        square, product = wave_products(x[None, :], a)
        cosine = 1.0 - 2.0 * square
        # With respect to u = a x, the derivative of the slope is twice the turn, and that of the rise -bend / a.
        turn = q * cosine + 2.0 * p * product
        bend = p * cosine - 2.0 * q * product
        rise = (q * square - p * product) * inverse
        slope = 1.0 - tl.sum(bend, 0)
        of_slope = of_ladj / slope
        of_rise = grad[None, :] * inverse
        of_turn = 2.0 * of_slope * x
        of_a = of_turn[None, :] * turn - of_rise * (x[None, :] * bend + rise)
        of_p = -(of_rise * product + of_slope[None, :] * cosine)
        of_q = of_rise * square + 2.0 * of_slope[None, :] * product
        _store_gradient(gradients, at, of_a, exists, row, rows, inside, SHARED)
        _store_gradient(gradients + count, at, of_p, exists, row, rows, inside, SHARED)
        _store_gradient(gradients + 2 * count, at, of_q, exists, row, rows, inside, SHARED)
        if SHARED:
            tl.store(gradients + 3 * count + transformer, tl.sum(grad, 0))
        else:
            tl.store(gradients + 3 * count + transformer * rows.to(tl.int64) + row, grad, inside)
        grad = grad * slope + of_slope * tl.sum(2.0 * a * turn, 0)
    tl.store(grad_x_at + place, grad, inside)


@triton.jit(do_not_specialize=["rows", "limit"])
def _inverse(
    z_at, a_at, p_at, q_at, d_at, x_at, ladj_at, iterations_at, residual_at, converged_at, rows, features, limit,
    SCALES: tl.constexpr, WAVES: tl.constexpr, SHARED: tl.constexpr, EPSILON: tl.constexpr, MIXED: tl.constexpr,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    feature, row, place, inside = tile(rows, features, FEATURES, ROWS)
    here = (feature < features)[:, None] if SHARED else inside
    x = tl.load(z_at + place, inside, 0.0)
    log_slope = tl.zeros((FEATURES, ROWS), ladj_at.dtype.element_ty)
    worst = tl.zeros((FEATURES, ROWS), x.dtype)
    good = inside | True
    most = tl.zeros((FEATURES, ROWS), tl.int32)
    rest = tl.zeros((FEATURES, ROWS), x.dtype)
    stride = 1 if SHARED else rows.to(tl.int64)
    for backwards in range(SCALES):
        j = SCALES - 1 - backwards
        transformer = j * features + feature
        shift = tl.load(d_at + per_row(transformer, row, rows, SHARED), here, 0.0).to(x.dtype)
        at = per_row(transformer * WAVES, row, rows, SHARED)
        x, rest, slope, residual, converged, evaluations = solve(
            x, rest, shift, a_at, p_at, q_at, at, stride, here, limit, EPSILON, WAVES, MIXED=MIXED
        )
        log_slope += tl.log(slope.to(log_slope.dtype))
        worst = tl.maximum(worst, tl.where(residual == residual, residual, float("inf")))
        good = good & converged
        most = tl.maximum(most, evaluations)
    finite = tl.abs(x) < float("inf")  # it may overflow after the search has converged
    worst = tl.where(finite, worst, float("inf"))
    tl.store(x_at + place, x, inside)
    tl.store(ladj_at + tile_slot(row), -tl.sum(tl.where(inside, log_slope, 0.0), 0), row < rows)
    tl.store(iterations_at + tile_slot(row), tl.max(tl.where(inside, most, 0), 0), row < rows)
    tl.store(residual_at + tile_slot(row), tl.max(tl.where(inside, worst, 0.0), 0), row < rows)
    tl.store(converged_at + tile_slot(row), tl.min(tl.where((good & finite) | ~inside, 1, 0), 0) == 1, row < rows)
