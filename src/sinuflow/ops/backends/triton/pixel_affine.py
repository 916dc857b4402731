r"""What a scale does to images, :math:`z = e^s y` with :math:`s = 2 \tanh(r/2)`, in one kernel each way.

The plain version is :mod:`sinuflow.ops.pixel_affine`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...conditional_waves import LOG_SCALE_MAX
from .arithmetic import tanh
from .tiles import by_row, on_its_device, own_row, tile, tiling


@on_its_device
def forward(told: Tensor) -> tuple[Tensor, Tensor]:
    """z (D, B) and the log-determinant (B,), given y and r below it, (2D, B)."""
    told = told.contiguous()
    y = told[: len(told) // 2]
    grid, padded, height = tiling(y)
    z, ladj = torch.empty_like(y), y.new_empty((y.shape[-1], grid[1]))
    _forward[grid](told, z, ladj, y.shape[-1], len(y), MOST=LOG_SCALE_MAX, FEATURES=padded, ROWS=height)
    return z, by_row(ladj, Tensor.sum)


@on_its_device
def backward(told: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> Tensor:
    """The chain rule through :func:`forward`: the gradient of what is told."""
    told, grad_z, grad_ladj = told.contiguous(), grad_z.contiguous(), grad_ladj.contiguous()
    grid, padded, height = tiling(grad_z)
    grad = torch.empty_like(told)
    _backward[grid](
        told, grad_z, grad_ladj, grad, grad_z.shape[-1], len(grad_z),
        MOST=LOG_SCALE_MAX, FEATURES=padded, ROWS=height,
    )  # fmt: skip
    return grad


@triton.jit
def _part(told_at, place, inside, rows, features, MOST: tl.constexpr):
    """Of a tile: y, t = tanh(r / 2) and the scale; and where r is."""
    below = place + features * rows.to(tl.int64)
    y = tl.load(told_at + place, inside, 0.0)
    t = tanh(tl.load(told_at + below, inside, 0.0) / MOST)
    return y, t, tl.exp(MOST * t), below


@triton.jit(do_not_specialize=["rows"])
def _forward(
    told_at, z_at, ladj_at, rows, features, MOST: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    _, row, place, inside = tile(rows, features, FEATURES, ROWS)
    y, t, scale, _ = _part(told_at, place, inside, rows, features, MOST)
    tl.store(z_at + place, y * scale, inside)
    tl.store(ladj_at + own_row(row), tl.sum(tl.where(inside, MOST * t, 0.0), 0), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    told_at, grad_z_at, grad_ladj_at, grad_at, rows, features,
    MOST: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    _, row, place, inside = tile(rows, features, FEATURES, ROWS)
    y, t, scale, below = _part(told_at, place, inside, rows, features, MOST)
    of_y = tl.load(grad_z_at + place, inside, 0.0) * scale
    of_ladj = tl.load(grad_ladj_at + row, row < rows, 0.0)[None, :]
    tl.store(grad_at + place, of_y, inside)
    tl.store(grad_at + below, (of_y * y + of_ladj) * (1.0 - t * t), inside)
