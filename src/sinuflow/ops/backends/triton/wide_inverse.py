"""The inverse of a shift by a wide PixelCNN, or of a shift and a scale, by ordered substitution.

Pixels whose column and four times whose row have the same sum do not see each other: such a front is one launch, and
what they see is in earlier ones. A program has one of them, of a tile of images, and finds its channels one by one.
Maps are stored, and named, as in :mod:`.wide_layers`: a layer reads them from memory, a few at a
time, because registers have no room for matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import tanh
from .wide_layers import biased, far, features, rectified, times


@triton.jit
def _layer(
    maps_at, exists, weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The product of maps (TILE, COLUMNS), which start at these addresses, and the transpose of a matrix."""
    sums = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(0, COLUMNS, CHUNK):
        column = start + tl.arange(0, CHUNK)
        maps = tl.load(maps_at[:, None] + column[None, :], exists[:, None], 0.0)
        turned = tl.load(weights_at + tl.arange(0, ROWS)[None, :] * STRIDE + column[:, None])
        sums = tl.dot(maps, turned, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _shared(at, maps, inside, MAPS: tl.constexpr):
    """Store maps, and wait until all threads of the program can read them."""
    tl.debug_barrier()  # nobody still reads what was there before
    tl.store(at[:, None] + tl.arange(0, MAPS)[None, :], maps, inside[:, None])
    tl.debug_barrier()


@triton.jit(do_not_specialize=["front", "top", "batch"])
def solve_front(
    z_at, x_at, weights_at, biases_at, added_at, wide_at, shrunk_at, inner_at, beside_at, front, top, batch,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, HEAD: tl.constexpr, BLOCKS: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, SKEW: tl.constexpr, CHUNK: tl.constexpr, SCALED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """x of the pixels of a front, from the row ``top`` down: z, without its scale, minus what the network says."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    FIRST: tl.constexpr = WIDE * COLUMNS
    BLOCK: tl.constexpr = 2 * NARROW * WIDE + 5 * NARROW * NARROW
    i = top + tl.program_id(0)
    j = front - SKEW * i
    place = i * WIDTH + j
    image = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = image < batch
    own = (tl.program_id(0) * batch + image).to(tl.int64)  # where maps are that nobody else needs
    here = (place * batch + image).to(tl.int64)
    x = far(x_at, i, j, image, inside, batch, 0, CHANNELS, HEIGHT, WIDTH, COLUMNS, 24)
    seen = times(x, weights_at, WIDE, COLUMNS, COLUMNS, PRECISION)
    seen = biased(seen, biases_at, added_at, image, inside, WIDE, ADDED)
    for channel in tl.static_range(CHANNELS):
        wide = seen
        for block in range(BLOCKS):
            shrink_at = weights_at + FIRST + block * BLOCK
            look_at = shrink_at + NARROW * WIDE
            bias_at = biases_at + WIDE + block * (2 * NARROW + WIDE)
            mine_at = shrunk_at + block * (PIXELS * batch).to(tl.int64) * NARROW
            _shared(wide_at + own * WIDE, rectified(wide), inside, WIDE)
            shrunk = _layer(wide_at + own * WIDE, inside, shrink_at, NARROW, WIDE, WIDE, PRECISION, ROWS, CHUNK)
            shrunk = rectified(biased(shrunk, bias_at, added_at, image, inside, NARROW, 0))
            _shared(mine_at + here * NARROW, shrunk, inside, NARROW)  # with the last channel, they are complete
            kept = (own * BLOCKS + block)[:, None] * NARROW + tl.arange(0, NARROW)[None, :]
            if channel == 0:  # the neighbours are complete, and contribute the same to all channels
                beside = tl.zeros((ROWS, NARROW), tl.float32)
                for near in tl.static_range(4):
                    up, aside = i + near // 3 - 1, j + near % 3 - 1
                    there = (up >= 0) & (aside >= 0) & (aside < WIDTH)
                    exists = image < tl.where(there, batch, 0)
                    at = mine_at + ((up * WIDTH + aside) * batch + image).to(tl.int64) * NARROW
                    near_at = look_at + near * NARROW
                    beside += _layer(at, exists, near_at, NARROW, NARROW, 5 * NARROW, PRECISION, ROWS, CHUNK)
                tl.store(beside_at + kept, beside, inside[:, None])
            else:
                beside = tl.load(beside_at + kept, inside[:, None], 0.0)
            here_at = look_at + 4 * NARROW
            sums = beside + _layer(
                mine_at + here * NARROW, inside, here_at, NARROW, NARROW, 5 * NARROW, PRECISION, ROWS, CHUNK
            )  # fmt: skip
            context_at = added_at + WIDE + block * NARROW
            inner = rectified(biased(sums, bias_at + NARROW, context_at, image, inside, NARROW, ADDED))
            _shared(inner_at + own * NARROW, inner, inside, NARROW)
            grow_at = look_at + 5 * NARROW * NARROW
            wide += _layer(inner_at + own * NARROW, inside, grow_at, WIDE, NARROW, NARROW, PRECISION, ROWS, CHUNK)
            wide += tl.load(bias_at + 2 * NARROW + tl.arange(0, WIDE))[None, :]
        _shared(wide_at + own * WIDE, rectified(wide), inside, WIDE)
        head_at = weights_at + FIRST + BLOCKS * BLOCK
        shift = _layer(wide_at + own * WIDE, inside, head_at, HEAD, WIDE, WIDE, PRECISION, ROWS, CHUNK)
        mine = (tl.arange(0, HEAD) == channel)[None, :]
        bias_at = biases_at + WIDE + BLOCKS * (2 * NARROW + WIDE) + channel
        at = features(place, channel, 0, PIXELS, CHANNELS) * batch.to(tl.int64) + image
        y = tl.load(z_at + at, inside, 0.0)
        if SCALED:
            head_at += HEAD * WIDE
            free = _layer(wide_at + own * WIDE, inside, head_at, HEAD, WIDE, WIDE, PRECISION, ROWS, CHUNK)
            free = tl.sum(tl.where(mine, free, 0.0), 1) + tl.load(bias_at + HEAD)
            y *= tl.exp(-MOST * tanh(free / MOST))
        found = y - (tl.sum(tl.where(mine, shift, 0.0), 1) + tl.load(bias_at))
        tl.store(x_at + at, found, inside)
        weights = tl.load(weights_at + tl.arange(0, WIDE) * COLUMNS + 24 * CHANNELS + channel)
        seen += found[:, None] * weights[None, :]
