"""Gradients of a PixelCNN's matrices and biases, given those of its maps.

A program accumulates one matrix over a part of the tiles. The partial sums are added in a fixed order afterwards, so
that results are deterministic. A part has ``size`` sums; kernels take the addresses of the first part's. Maps are
stored as in :mod:`.pixelcnn_layers`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .pixelcnn_layers import head_gradient, maps_at, neighbour_maps, relu


@triton.jit
def _tile(tile, batch, PIXELS: tl.constexpr, ROWS: tl.constexpr):
    """The pixel of a tile, its images, and their mask."""
    image = tile // PIXELS * ROWS + tl.arange(0, ROWS)
    return tile % PIXELS, image, image < batch


@triton.jit
def _ones(ROWS: tl.constexpr):
    """A factor that sums a tile's gradients by a product, once for each column of the smallest product.

    A reduction would be wrong on an H100: where a tile is read from shared memory by a product and another operation,
    Triton (3.6 and 3.9, issue 6691) overwrites it with the next tile before the product has ended.
    """
    return tl.full((ROWS, 16), 1.0, tl.float16)


@triton.jit
def _store(matrix_at, matrix, bias_at, bias, MAPS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    maps = tl.arange(0, MAPS)
    tl.store(matrix_at + maps[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :], matrix)
    tl.store(bias_at + maps, tl.sum(bias, 1) / 16)


@triton.jit
def _accumulate(
    maps_in_at, grad_at, matrix_at, bias_at, batch, column, PIXELS: tl.constexpr, STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr, MAPS: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Gradients of a matrix whose rows have the length STRIDE, for some of its COLUMNS."""
    columns = column + tl.arange(0, COLUMNS)
    matrix = tl.zeros((MAPS, COLUMNS), tl.float32)
    bias, ones = tl.zeros((MAPS, 16), tl.float32), _ones(ROWS)
    for tile in range(tl.program_id(0), PIXELS * tl.cdiv(batch, ROWS), tl.num_programs(0)):
        pixel, image, inside = _tile(tile, batch, PIXELS, ROWS)
        at = (pixel * batch + image).to(tl.int64) * STRIDE
        maps = tl.load(maps_in_at + at[:, None] + columns[None, :], inside[:, None], 0.0)
        grad = tl.load(grad_at + maps_at(pixel, image, batch, MAPS), inside[:, None], 0.0)
        transposed = tl.trans(grad)
        matrix = tl.dot(transposed, relu(maps) if RELU else maps, matrix)
        bias = tl.dot(transposed, ones, bias)
    _store(matrix_at + column, matrix, bias_at, bias, MAPS, COLUMNS, STRIDE)


@triton.jit(do_not_specialize=["batch", "size"])
def first_gradients(
    patch_at, grad_wide_at, matrix_at, bias_at, size, batch,
    PIXELS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Gradients of the first convolution; a program has a part of its columns, and all store the same biases."""
    part, column = tl.program_id(0) * size.to(tl.int64), tl.program_id(1) * PART
    matrix_at, bias_at = matrix_at + part, bias_at + part
    _accumulate(patch_at, grad_wide_at, matrix_at, bias_at, batch, column, PIXELS, COLUMNS, PART, WIDE, ROWS, False)


@triton.jit(do_not_specialize=["batch", "size", "reverse"])
def head_gradients(
    grad_at, scale_at, wide_at, matrix_at, bias_at, size, batch, reverse,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of the head; a program has one of its outputs."""
    part, output = tl.program_id(0) * size.to(tl.int64), tl.program_id(1)
    matrix = tl.zeros((HEAD, WIDE), tl.float32)
    bias, ones = tl.zeros((HEAD, 16), tl.float32), _ones(ROWS)
    for tile in range(tl.program_id(0), PIXELS * tl.cdiv(batch, ROWS), tl.num_programs(0)):
        pixel, image, inside = _tile(tile, batch, PIXELS, ROWS)
        wide = tl.load(wide_at + maps_at(pixel, image, batch, WIDE), inside[:, None], 0.0)
        grad = head_gradient(grad_at, scale_at, output, pixel, image, inside, batch, reverse, CHANNELS, PIXELS, HEAD)
        transposed = tl.trans(grad)
        matrix = tl.dot(transposed, relu(wide), matrix)
        bias = tl.dot(transposed, ones, bias)
    matrix_at += part + output * (HEAD * WIDE)
    _store(matrix_at, matrix, bias_at + part + output * HEAD, bias, HEAD, WIDE, WIDE)


@triton.jit(do_not_specialize=["batch", "size"])
def pointwise_gradients(
    wide_at, hidden_at, grad_wide_at, grad_reduced_at, matrix_at, bias_at, size, batch,
    PIXELS: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of the first or the third convolution of a bottleneck, 1x1 after a ReLU."""
    part, block = tl.program_id(0) * size.to(tl.int64), tl.program_id(1) // 2
    matrix_at += part + block * (2 * NARROW * WIDE + 5 * NARROW * NARROW)
    bias_at += part + block * (2 * NARROW + WIDE)
    wide = (PIXELS * batch).to(tl.int64) * WIDE
    narrow = (PIXELS * batch).to(tl.int64) * NARROW
    if tl.program_id(1) % 2:
        hidden_at += block * narrow
        grad_wide_at += (block + 1) * wide
        matrix_at += NARROW * WIDE + 5 * NARROW * NARROW
        bias_at += 2 * NARROW
        _accumulate(hidden_at, grad_wide_at, matrix_at, bias_at, batch, 0, PIXELS, NARROW, NARROW, WIDE, ROWS, True)
    else:
        wide_at += block * wide
        grad_reduced_at += block * narrow
        _accumulate(wide_at, grad_reduced_at, matrix_at, bias_at, batch, 0, PIXELS, WIDE, WIDE, NARROW, ROWS, True)


@triton.jit(do_not_specialize=["batch", "size"])
def conv_gradients(
    reduced_at, grad_hidden_at, matrix_at, bias_at, size, batch,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of the second convolution of a bottleneck."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    part, block = tl.program_id(0) * size.to(tl.int64), tl.program_id(1)
    reduced_at += block * (PIXELS * batch).to(tl.int64) * NARROW
    grad_hidden_at += block * (PIXELS * batch).to(tl.int64) * NARROW
    far_left = tl.zeros((NARROW, NARROW), tl.float32)
    above, far_right, left, here = far_left, far_left, far_left, far_left
    bias, ones = tl.zeros((NARROW, 16), tl.float32), _ones(ROWS)
    for tile in range(tl.program_id(0), PIXELS * tl.cdiv(batch, ROWS), tl.num_programs(0)):
        pixel, image, inside = _tile(tile, batch, PIXELS, ROWS)
        grad = tl.load(grad_hidden_at + maps_at(pixel, image, batch, NARROW), inside[:, None], 0.0)
        transposed, i, j = tl.trans(grad), pixel // WIDTH, pixel % WIDTH
        far_left = tl.dot(transposed, neighbour_maps(reduced_at, i, j, 0, image, batch, WIDTH, NARROW), far_left)
        above = tl.dot(transposed, neighbour_maps(reduced_at, i, j, 1, image, batch, WIDTH, NARROW), above)
        far_right = tl.dot(transposed, neighbour_maps(reduced_at, i, j, 2, image, batch, WIDTH, NARROW), far_right)
        left = tl.dot(transposed, neighbour_maps(reduced_at, i, j, 3, image, batch, WIDTH, NARROW), left)
        here = tl.dot(transposed, neighbour_maps(reduced_at, i, j, 4, image, batch, WIDTH, NARROW), here)
        bias = tl.dot(transposed, ones, bias)
    matrix_at += part + block * (2 * NARROW * WIDE + 5 * NARROW * NARROW) + NARROW * WIDE
    bias_at += part + block * (2 * NARROW + WIDE) + NARROW
    _store(matrix_at, far_left, bias_at, bias, NARROW, NARROW, 5 * NARROW)
    _store(matrix_at + NARROW, above, bias_at, bias, NARROW, NARROW, 5 * NARROW)
    _store(matrix_at + 2 * NARROW, far_right, bias_at, bias, NARROW, NARROW, 5 * NARROW)
    _store(matrix_at + 3 * NARROW, left, bias_at, bias, NARROW, NARROW, 5 * NARROW)
    _store(matrix_at + 4 * NARROW, here, bias_at, bias, NARROW, NARROW, 5 * NARROW)
