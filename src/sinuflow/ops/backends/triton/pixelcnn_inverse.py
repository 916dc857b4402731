"""The inverse of a shift, or of a shift and a scale, by a PixelCNN: ordered substitution.

Pixels (i, j) with the same 4 i + j, a front, depend on earlier fronts only, so a front is one launch. A program solves
one of its pixels for a tile of images, channel by channel. Maps are stored as in :mod:`.pixelcnn_layers`; a layer loads
a few at a time, because registers do not hold the matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ... import pixelcnn_inverse
from .arithmetic import bounded_log_scale
from .pixelcnn_layers import add_bias, features, matmul, patch, relu

#: Pixels of a front are one row and this many columns apart.
SKEW = tl.constexpr(pixelcnn_inverse.SKEW)


@triton.jit
def _layer(
    maps_at, exists, weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The product of maps (TILE, COLUMNS) at these addresses with the transpose of a matrix."""
    sums = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(0, COLUMNS, CHUNK):
        column = start + tl.arange(0, CHUNK)
        maps = tl.load(maps_at[:, None] + column[None, :], exists[:, None], 0.0)
        transposed = tl.load(weights_at + tl.arange(0, ROWS)[None, :] * STRIDE + column[:, None])
        sums = tl.dot(maps, transposed, sums, input_precision="tf32x3")
    return sums


@triton.jit
def _publish(at, maps, inside, MAPS: tl.constexpr):
    """Store maps, so that all threads of the program can load them."""
    tl.debug_barrier()  # until no thread reads the previous maps
    tl.store(at[:, None] + tl.arange(0, MAPS)[None, :], maps, inside[:, None])
    tl.debug_barrier()


@triton.jit(do_not_specialize=["front", "top", "batch"])
def solve_front(
    z_at, x_at, weights_at, biases_at, added_at, wide_at, reduced_at, hidden_at, neighbours_at, front, top, batch,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, HEAD: tl.constexpr, BLOCKS: tl.constexpr, ADDED: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """x of the pixels of a front, from the row ``top`` down: z, divided by its scale, minus the shift."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    FIRST: tl.constexpr = WIDE * COLUMNS
    BLOCK: tl.constexpr = 2 * NARROW * WIDE + 5 * NARROW * NARROW
    i = top + tl.program_id(0)
    j = front - i * SKEW
    pixel = i * WIDTH + j
    image = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = image < batch
    own = (tl.program_id(0) * batch + image).to(tl.int64)  # of maps that only this program uses
    here = (pixel * batch + image).to(tl.int64)
    x = patch(x_at, i, j, image, inside, batch, 0, CHANNELS, HEIGHT, WIDTH, COLUMNS, 24)
    first = matmul(x, weights_at, WIDE, COLUMNS, COLUMNS)
    first = add_bias(first, biases_at, WIDE, added_at, image, inside, ADDED)
    for channel in tl.static_range(CHANNELS):
        wide = first
        for block in range(BLOCKS):
            reduce_at = weights_at + FIRST + block * BLOCK
            conv_at = reduce_at + NARROW * WIDE
            bias_at = biases_at + WIDE + block * (2 * NARROW + WIDE)
            mine_at = reduced_at + block * (PIXELS * batch).to(tl.int64) * NARROW
            _publish(wide_at + own * WIDE, relu(wide), inside, WIDE)
            reduced = _layer(wide_at + own * WIDE, inside, reduce_at, NARROW, WIDE, WIDE, ROWS, CHUNK)
            reduced = relu(add_bias(reduced, bias_at, NARROW))
            _publish(mine_at + here * NARROW, reduced, inside, NARROW)  # complete with the last channel
            stored = (own * BLOCKS + block)[:, None] * NARROW + tl.arange(0, NARROW)[None, :]
            if channel == 0:  # the neighbours contribute the same to all channels
                neighbours = tl.zeros((ROWS, NARROW), tl.float32)
                for tap in tl.static_range(4):
                    row, column = i + tap // 3 - 1, j + tap % 3 - 1
                    exists = image < tl.where((row >= 0) & (column >= 0) & (column < WIDTH), batch, 0)
                    at = mine_at + ((row * WIDTH + column) * batch + image).to(tl.int64) * NARROW
                    tap_at = conv_at + tap * NARROW
                    neighbours += _layer(at, exists, tap_at, NARROW, NARROW, 5 * NARROW, ROWS, CHUNK)
                tl.store(neighbours_at + stored, neighbours, inside[:, None])
            else:
                neighbours = tl.load(neighbours_at + stored, inside[:, None], 0.0)
            here_at = conv_at + 4 * NARROW
            seen_at = mine_at + here * NARROW
            sums = neighbours + _layer(seen_at, inside, here_at, NARROW, NARROW, 5 * NARROW, ROWS, CHUNK)
            context_at = added_at + WIDE + block * NARROW
            hidden = relu(add_bias(sums, bias_at + NARROW, NARROW, context_at, image, inside, ADDED))
            _publish(hidden_at + own * NARROW, hidden, inside, NARROW)
            expand_at = conv_at + 5 * NARROW * NARROW
            wide += _layer(hidden_at + own * NARROW, inside, expand_at, WIDE, NARROW, NARROW, ROWS, CHUNK)
            wide = add_bias(wide, bias_at + 2 * NARROW, WIDE)
        _publish(wide_at + own * WIDE, relu(wide), inside, WIDE)
        head_at = weights_at + FIRST + BLOCKS * BLOCK
        shift = _layer(wide_at + own * WIDE, inside, head_at, HEAD, WIDE, WIDE, ROWS, CHUNK)
        mine = (tl.arange(0, HEAD) == channel)[None, :]
        bias_at = biases_at + WIDE + BLOCKS * (2 * NARROW + WIDE) + channel
        at = features(pixel, channel, 0, PIXELS, CHANNELS) * batch.to(tl.int64) + image
        y = tl.load(z_at + at, inside, 0.0)
        if SCALED:
            head_at += HEAD * WIDE
            r = _layer(wide_at + own * WIDE, inside, head_at, HEAD, WIDE, WIDE, ROWS, CHUNK)
            r = tl.sum(tl.where(mine, r, 0.0), 1) + tl.load(bias_at + HEAD)
            y *= tl.exp(-bounded_log_scale(r))
        solution = y - (tl.sum(tl.where(mine, shift, 0.0), 1) + tl.load(bias_at))
        tl.store(x_at + at, solution, inside)
        weights = tl.load(weights_at + tl.arange(0, WIDE) * COLUMNS + 24 * CHANNELS + channel)
        first += solution[:, None] * weights[None, :]
