"""The gradients of a wide PixelCNN's matrices and biases, given those of its maps.

A program adds up one matrix over a part of all places, and of a bottleneck's second convolution, the columns of one of
its five places. What all programs have found is added up in a fixed order afterwards, so that results repeat.
Maps are stored, and named, as in :mod:`sinuflow.kernels.triton.wide_layers`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .wide_layers import far, head_gradient, maps_at


@triton.jit
def _taken(tile, batch, PIXELS: tl.constexpr, ROWS: tl.constexpr):
    """The place of a tile, its images, and which of them there are."""
    image = tile // PIXELS * ROWS + tl.arange(0, ROWS)
    return tile % PIXELS, image, image < batch


@triton.jit
def _write(matrix_at, matrix, bias_at, bias, MAPS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    maps = tl.arange(0, MAPS)
    tl.store(matrix_at + maps[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :], matrix)
    tl.store(bias_at + maps, tl.sum(bias, 0))


@triton.jit
def _of_first(
    x_at, grad_wide_at, matrix_at, bias_at, batch, tiles,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    REVERSE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    matrix = tl.zeros((WIDE, COLUMNS), tl.float32)
    bias = tl.zeros((ROWS, WIDE), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        place, image, inside = _taken(tile, batch, HEIGHT * WIDTH, ROWS)
        x = far(x_at, place // WIDTH, place % WIDTH, image, inside, batch, CHANNELS, HEIGHT, WIDTH, COLUMNS, REVERSE)
        grad = tl.load(grad_wide_at + maps_at(place, image, batch, WIDE), inside[:, None], 0.0)
        matrix = tl.dot(tl.trans(grad), x, matrix)
        bias += grad.to(tl.float32)
    _write(matrix_at, matrix, bias_at, bias, WIDE, COLUMNS, COLUMNS)


@triton.jit
def _of_head(
    grad_at, scale_at, wide_at, matrix_at, bias_at, batch, tiles,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr, HEAD: tl.constexpr, REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    matrix = tl.zeros((HEAD, WIDE), tl.float32)
    bias = tl.zeros((ROWS, HEAD), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        place, image, inside = _taken(tile, batch, PIXELS, ROWS)
        wide = tl.load(wide_at + maps_at(place, image, batch, WIDE), inside[:, None], 0.0)
        grad = head_gradient(grad_at, scale_at, place, image, inside, batch, CHANNELS, PIXELS, HEAD, REVERSE)
        matrix = tl.dot(tl.trans(grad), tl.maximum(wide, 0.0), matrix)
        bias += grad.to(tl.float32)
    _write(matrix_at, matrix, bias_at, bias, HEAD, WIDE, WIDE)


@triton.jit
def _of_one(
    seen_at, grad_at, matrix_at, bias_at, batch, tiles,
    PIXELS: tl.constexpr, COLUMNS: tl.constexpr, MAPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of a convolution that sees one place; of what it sees, the rectified part."""
    matrix = tl.zeros((MAPS, COLUMNS), tl.float32)
    bias = tl.zeros((ROWS, MAPS), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        place, image, inside = _taken(tile, batch, PIXELS, ROWS)
        seen = tl.load(seen_at + maps_at(place, image, batch, COLUMNS), inside[:, None], 0.0)
        grad = tl.load(grad_at + maps_at(place, image, batch, MAPS), inside[:, None], 0.0)
        matrix = tl.dot(tl.trans(grad), tl.maximum(seen, 0.0), matrix)
        bias += grad.to(tl.float32)
    _write(matrix_at, matrix, bias_at, bias, MAPS, COLUMNS, COLUMNS)


@triton.jit
def _of_look(
    seen_at, grad_at, matrix_at, bias_at, near, batch, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, MAPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of a convolution that sees five, for one of them. All five write the same biases."""
    matrix = tl.zeros((MAPS, MAPS), tl.float32)
    bias = tl.zeros((ROWS, MAPS), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        place, image, inside = _taken(tile, batch, HEIGHT * WIDTH, ROWS)
        up, aside = place // WIDTH + near // 3 - 1, place % WIDTH + near % 3 - 1
        there = (up >= 0) & (aside >= 0) & (aside < WIDTH)
        exists = image < tl.where(there, batch, 0)
        seen = tl.load(seen_at + maps_at(up * WIDTH + aside, image, batch, MAPS), exists[:, None], 0.0)
        grad = tl.load(grad_at + maps_at(place, image, batch, MAPS), inside[:, None], 0.0)
        matrix = tl.dot(tl.trans(grad), seen, matrix)
        bias += grad.to(tl.float32)
    _write(matrix_at + near * MAPS, matrix, bias_at, bias, MAPS, MAPS, 5 * MAPS)


@triton.jit(do_not_specialize=["batch"])
def weight_gradients(
    x_at, grad_at, scale_at, wide_at, shrunk_at, inner_at, grad_wide_at, grad_shrunk_at, grad_inner_at, sums_at, batch,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, HEAD: tl.constexpr, BLOCKS: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All sums of a part of the places: of matrices in the order of the layers, and then of biases."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    FIRST: tl.constexpr = WIDE * COLUMNS
    BLOCK: tl.constexpr = 2 * NARROW * WIDE + 5 * NARROW * NARROW
    WEIGHTS: tl.constexpr = FIRST + BLOCKS * BLOCK + HEAD * WIDE
    BIASES: tl.constexpr = WIDE + BLOCKS * (2 * NARROW + WIDE) + HEAD
    tiles = PIXELS * tl.cdiv(batch, ROWS)
    block, kind = tl.program_id(1) // 7, tl.program_id(1) % 7
    sums_at += tl.program_id(0).to(tl.int64) * (WEIGHTS + BIASES)
    matrix_at = sums_at + FIRST + block * BLOCK
    bias_at = sums_at + WEIGHTS + WIDE + block * (2 * NARROW + WIDE)
    wide = (PIXELS * batch).to(tl.int64) * WIDE
    narrow = (PIXELS * batch).to(tl.int64) * NARROW
    if block == BLOCKS:
        if kind == 0:
            _of_first(
                x_at, grad_wide_at, sums_at, sums_at + WEIGHTS, batch, tiles, CHANNELS, HEIGHT, WIDTH, COLUMNS, WIDE,
                REVERSE, ROWS,
            )  # fmt: skip
        else:
            _of_head(
                grad_at, scale_at, wide_at + BLOCKS * wide, sums_at + WEIGHTS - HEAD * WIDE, bias_at, batch, tiles,
                CHANNELS, PIXELS, WIDE, HEAD, REVERSE, ROWS,
            )  # fmt: skip
    elif kind == 0:
        _of_one(
            wide_at + block * wide, grad_shrunk_at + block * narrow, matrix_at, bias_at, batch, tiles,
            PIXELS, WIDE, NARROW, ROWS,
        )  # fmt: skip
    elif kind == 6:
        _of_one(
            inner_at + block * narrow, grad_wide_at + (block + 1) * wide, matrix_at + BLOCK - WIDE * NARROW,
            bias_at + 2 * NARROW, batch, tiles, PIXELS, NARROW, WIDE, ROWS,
        )  # fmt: skip
    else:
        _of_look(
            shrunk_at + block * narrow, grad_inner_at + block * narrow, matrix_at + NARROW * WIDE, bias_at + NARROW,
            kind - 1, batch, tiles, HEIGHT, WIDTH, NARROW, ROWS,
        )  # fmt: skip
