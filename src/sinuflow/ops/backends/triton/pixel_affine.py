r"""Forward and backward of :math:`z = e^s y` with :math:`s = 2 \tanh(r/2)`, one launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arithmetic import LOG_SCALE_MAX, tanh
from .launch import device_guard, reduce_tiles, tile, tile_slot, tiling


@device_guard
def forward(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """z (D, B) and the log-determinant (B,) for outputs (2D, B): y, then r."""
    outputs = outputs.contiguous()
    y = outputs[: len(outputs) // 2]
    grid, size = tiling(y)
    z, ladj = torch.empty_like(y), y.new_empty((y.shape[-1], grid[1]))
    _forward[grid](outputs, z, ladj, y.shape[-1], len(y), **size)
    return z, reduce_tiles(ladj, Tensor.sum)


@device_guard
def backward(outputs: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor]:
    """The gradient of the outputs."""
    outputs, grad_z, grad_ladj = outputs.contiguous(), grad_z.contiguous(), grad_ladj.contiguous()
    grid, size = tiling(grad_z)
    grad = torch.empty_like(outputs)
    _backward[grid](outputs, grad_z, grad_ladj, grad, grad_z.shape[-1], len(grad_z), **size)
    return (grad,)


@triton.jit
def _part(outputs_at, place, inside, rows, features):
    """For a tile: y, t = tanh(r / 2), the scale, and the offsets of r."""
    below = place + features * rows.to(tl.int64)
    y = tl.load(outputs_at + place, inside, 0.0)
    t = tanh(tl.load(outputs_at + below, inside, 0.0) * (1.0 / LOG_SCALE_MAX))
    return y, t, tl.exp(t * LOG_SCALE_MAX), below


@triton.jit(do_not_specialize=["rows"])
def _forward(outputs_at, z_at, ladj_at, rows, features, FEATURES: tl.constexpr, ROWS: tl.constexpr):
    _, row, place, inside = tile(rows, features, FEATURES, ROWS)
    y, t, scale, _ = _part(outputs_at, place, inside, rows, features)
    tl.store(z_at + place, y * scale, inside)
    tl.store(ladj_at + tile_slot(row), tl.sum(tl.where(inside, t * LOG_SCALE_MAX, 0.0), 0), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _backward(outputs_at, grad_z_at, grad_ladj_at, grad_at, rows, features, FEATURES: tl.constexpr, ROWS: tl.constexpr):
    _, row, place, inside = tile(rows, features, FEATURES, ROWS)
    y, t, scale, below = _part(outputs_at, place, inside, rows, features)
    of_y = tl.load(grad_z_at + place, inside, 0.0) * scale
    of_ladj = tl.load(grad_ladj_at + row, row < rows, 0.0)[None, :]
    tl.store(grad_at + place, of_y, inside)
    tl.store(grad_at + below, (of_y * y + of_ladj) * (1.0 - t * t), inside)
