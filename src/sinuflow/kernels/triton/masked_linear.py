r"""Products with a masked matrix: the part that the mask removes is neither read nor multiplied.

Row r of the matrix W sees its first ``reach[r]`` columns, and ``reach`` never falls from one row to the
next, so what remains is a staircase. Activations are feature-major. Numbers are multiplied on the tensor
cores in three parts each (``tf32x3``), which keeps float32's precision; float64 is multiplied as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """Rows and columns of the result that one program computes, and how many terms it adds at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


FORWARD = Tile(64, 128, 32, 4, 3)
INPUT = Tile(64, 128, 32, 4, 3)
WEIGHT = Tile(64, 64, 32, 4, 3)
#: Programs that share the rows of one weight gradient: enough to keep a GPU busy.
_SPLITS = 8


def forward(
    weight: Tensor, reach: Tensor, bias: Tensor, h: Tensor, skip: Tensor | None, rectify: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    r""":math:`(M \odot W) h + b`, plus ``skip``; then, rectified if wanted.

    With ``keep`` the first result is that before rectifying; otherwise both are the same.
    """
    rows, batch = weight.shape[0], h.shape[-1]
    after = h.new_empty((rows, batch))
    before = torch.empty_like(after) if keep else after
    tile = FORWARD
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(batch, tile.columns))
    if batch:
        _forward[grid](
            weight, reach, bias, h, after if skip is None else skip, before, after, rows, weight.shape[1], batch,
            SKIP=skip is not None, RECTIFY=rectify, KEEP=keep, **_options(tile, h.dtype),
        )  # fmt: skip
    return before, after


def input_gradient(weight: Tensor, reach: Tensor, first: Tensor, grad: Tensor, after: Tensor | None) -> Tensor:
    r""":math:`(M \odot W)^T g`, and zero where ``after``, the rectified input, is not positive.

    ``first[c]`` is the first row that sees column c.
    """
    columns, batch = weight.shape[1], grad.shape[-1]
    out = grad.new_empty((columns, batch))
    tile = INPUT
    grid = (triton.cdiv(columns, tile.rows), triton.cdiv(batch, tile.columns))
    if batch:
        _input_gradient[grid](
            weight, reach, first, grad, out if after is None else after, out, weight.shape[0], columns, batch,
            RECTIFIED=after is not None, **_options(tile, grad.dtype),
        )  # fmt: skip
    return out


def weight_gradient(reach: Tensor, grad: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`M \odot g h^T`, and the sum of g over its columns, which is the gradient of the bias."""
    rows, columns, batch = grad.shape[0], h.shape[0], grad.shape[-1]
    tile = WEIGHT
    splits = max(1, min(_SPLITS, batch // 128))
    parts = grad.new_empty((splits, rows, columns))
    bias_parts = grad.new_empty((splits, rows))
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), splits)
    _weight_gradient[grid](
        reach, grad, h, parts, bias_parts, rows, columns, batch, triton.cdiv(batch, splits),
        **_options(tile, grad.dtype),
    )  # fmt: skip
    # Added up in a fixed order, so that results repeat.
    return (parts.sum(0), bias_parts.sum(0)) if splits > 1 else (parts[0], bias_parts[0])


def _options(tile: Tile, dtype: torch.dtype) -> dict[str, object]:
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


@triton.jit(do_not_specialize=["batch"])
def _forward(
    weight_at, reach_at, bias_at, h_at, skip_at, before_at, after_at, rows, columns, batch,
    SKIP: tl.constexpr, RECTIFY: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # The last rows see the most and take the longest: begin with them.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    reach = tl.load(reach_at + row, row < rows, 0)
    total = tl.zeros((ROWS, COLUMNS), h_at.dtype.element_ty)
    for start in range(0, tl.max(reach, 0), DEPTH):
        term = start + tl.arange(0, DEPTH)
        w = tl.load(weight_at + row[:, None] * columns + term[None, :], term[None, :] < reach[:, None], 0.0)
        there = (term < columns)[:, None] & (column < batch)[None, :]
        h = tl.load(h_at + term[:, None].to(tl.int64) * batch + column[None, :], there, 0.0)
        total = tl.dot(w, h, total, input_precision=PRECISION, out_dtype=total.dtype)
    total += tl.load(bias_at + row, row < rows, 0.0)[:, None]
    place = row[:, None].to(tl.int64) * batch + column[None, :]
    inside = (row < rows)[:, None] & (column < batch)[None, :]
    if SKIP:
        total += tl.load(skip_at + place, inside, 0.0)
    if KEEP:
        tl.store(before_at + place, total, inside)
    if RECTIFY:
        total = tl.maximum(total, 0.0)
    tl.store(after_at + place, total, inside)


@triton.jit(do_not_specialize=["batch"])
def _input_gradient(
    weight_at, reach_at, first_at, grad_at, after_at, out_at, rows, columns, batch,
    RECTIFIED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # a column of the matrix
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), grad_at.dtype.element_ty)
    # The first row of the matrix that sees any of these columns, rounded down to a whole step.
    begin = tl.load(first_at + tl.program_id(0) * ROWS) // DEPTH * DEPTH
    for start in range(begin, rows, DEPTH):
        term = start + tl.arange(0, DEPTH)
        reach = tl.load(reach_at + term, term < rows, 0)
        w = tl.load(weight_at + term[None, :] * columns + row[:, None], row[:, None] < reach[None, :], 0.0)
        there = (term < rows)[:, None] & (column < batch)[None, :]
        g = tl.load(grad_at + term[:, None].to(tl.int64) * batch + column[None, :], there, 0.0)
        total = tl.dot(w, g, total, input_precision=PRECISION, out_dtype=total.dtype)
    place = row[:, None].to(tl.int64) * batch + column[None, :]
    inside = (row < columns)[:, None] & (column < batch)[None, :]
    if RECTIFIED:
        total = tl.where(tl.load(after_at + place, inside, 0.0) > 0, total, 0.0)
    tl.store(out_at + place, total, inside)


@triton.jit(do_not_specialize=["batch", "share"])
def _weight_gradient(
    reach_at, grad_at, h_at, parts_at, bias_parts_at, rows, columns, batch, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    reach = tl.load(reach_at + row, row < rows, 0)
    total = tl.zeros((ROWS, COLUMNS), h_at.dtype.element_ty)
    of_bias = tl.zeros((ROWS,), h_at.dtype.element_ty)
    seen = tl.program_id(1) * COLUMNS < tl.max(reach, 0)
    if seen | (tl.program_id(1) == 0):
        stop = tl.minimum(batch, (split + 1) * share)
        for start in range(split * share, stop, DEPTH):
            term = start + tl.arange(0, DEPTH)
            g = tl.load(
                grad_at + row[:, None].to(tl.int64) * batch + term[None, :],
                (row < rows)[:, None] & (term < stop)[None, :], 0.0,
            )  # fmt: skip
            h = tl.load(
                h_at + column[None, :].to(tl.int64) * batch + term[:, None],
                (column < columns)[None, :] & (term < stop)[:, None], 0.0,
            )  # fmt: skip
            total = tl.dot(g, h, total, input_precision=PRECISION, out_dtype=total.dtype)
            of_bias += tl.sum(g, 1)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    total = tl.where(column[None, :] < reach[:, None], total, 0.0)
    tl.store(parts_at + (split * rows + row[:, None]).to(tl.int64) * columns + column[None, :], total, inside)
    if tl.program_id(1) == 0:
        tl.store(bias_parts_at + split * rows + row, of_bias, row < rows)
