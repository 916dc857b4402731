"""The layers of a PixelCNN that is too wide for a block of the CUDA kernels.

They are in half precision while it learns, and otherwise in single precision, which tensor cores reach with three
products instead of one.

A program takes one place of a tile of images, and all maps there. So maps are stored as [place][image][map]: the
neighbours of a place are tiles as well, and of a tile, all images are inside of the image or none is. Layers follow one
another in registers until one wants neighbours.

Matrices are as in :mod:`sinuflow.ops.backends.cuda.pixels.layout`: rows are maps, columns are [place][map].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(batch, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """This program's place, its row and column in the image, its images, and which of them there are."""
    place = tl.program_id(0)
    image = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    return place, place // WIDTH, place % WIDTH, image, image < batch


@triton.jit
def maps_at(place, image, batch, MAPS: tl.constexpr):
    """Where the maps of a place are, (ROWS, MAPS)."""
    at = (place * batch + image).to(tl.int64) * MAPS
    return at[:, None] + tl.arange(0, MAPS)[None, :]


@triton.jit
def _matrix(weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """A matrix (ROWS, COLUMNS)."""
    return tl.load(weights_at + tl.arange(0, ROWS)[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :])


@triton.jit
def features(place, channel, reverse, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The rows of a feature-major batch that have some channels of some places."""
    feature = channel * PIXELS + place
    return tl.where(reverse != 0, CHANNELS * PIXELS - 1 - feature, feature)


@triton.jit
def far(
    x_at, i, j, image, inside, batch, reverse, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What the first convolution sees of its first so many places, (ROWS, COLUMNS)."""
    column = tl.arange(0, COLUMNS)
    seen, channel = column // CHANNELS, column % CHANNELS
    up, aside = i + seen // 7 - 3, j + seen % 7 - 3
    there = (seen < PLACES) & (up >= 0) & (aside >= 0) & (aside < WIDTH)
    feature = features(up * WIDTH + aside, channel, reverse, HEIGHT * WIDTH, CHANNELS)
    at = feature[None, :] * batch.to(tl.int64) + image[:, None]
    return tl.load(x_at + at, there[None, :] & inside[:, None], 0.0)


@triton.jit
def head_gradient(
    grad_at, scale_at, output, place, image, inside, batch, reverse, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    HEAD: tl.constexpr,
):  # fmt: skip
    """The gradient of one of the network's outputs, (ROWS, HEAD)."""
    channel = tl.arange(0, HEAD)
    feature = output * (CHANNELS * PIXELS) + features(place, channel, reverse, PIXELS, CHANNELS)
    at = feature[None, :] * batch.to(tl.int64) + image[:, None]
    grad = tl.load(grad_at + at, (channel < CHANNELS)[None, :] & inside[:, None], 0.0)
    return (grad * tl.load(scale_at)).to(tl.float16)


@triton.jit
def near_maps(shrunk_at, i, j, near: tl.constexpr, image, batch, WIDTH: tl.constexpr, NARROW: tl.constexpr):
    """What the second convolution of a bottleneck sees at one of its five places."""
    up, aside = i + near // 3 - 1, j + near % 3 - 1
    there = (up >= 0) & (aside >= 0) & (aside < WIDTH)
    exists = image < tl.where(there, batch, 0)
    return tl.load(shrunk_at + maps_at(up * WIDTH + aside, image, batch, NARROW), exists[:, None], 0.0)


@triton.jit
def rectified(maps):
    """The positive part, in the same precision; what is no number stays none."""
    return tl.where(maps <= 0.0, tl.zeros_like(maps), maps)


@triton.jit
def _active(units, gradient):
    """The gradient before the rectifier, for the gradient after it."""
    return tl.where(units <= 0.0, 0.0, gradient)


@triton.jit
def biased(sums, biases_at, added_at, image, inside, MAPS: tl.constexpr, ADDED: tl.constexpr):
    """With biases, and with what the context adds to the maps of an image, if anything."""
    maps = tl.arange(0, MAPS)
    sums += tl.load(biases_at + maps)[None, :]
    if ADDED > 0:
        sums += tl.load(added_at + image[:, None] * ADDED + maps[None, :], inside[:, None], 0.0)
    return sums


@triton.jit
def times(maps, weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Maps (tile, COLUMNS) times the transpose of a matrix (ROWS, COLUMNS), whose precision they get."""
    turned = tl.load(weights_at + tl.arange(0, ROWS)[None, :] * STRIDE + tl.arange(0, COLUMNS)[:, None])
    return tl.dot(maps.to(turned.dtype), turned, input_precision=PRECISION)


@triton.jit
def _note_largest(largest_at, image, inside, maps):
    tl.atomic_max(largest_at + image, tl.max(maps.to(tl.float32), 1), inside)


@triton.jit(do_not_specialize=["batch", "reverse"])
def begin(
    x_at, first_at, first_bias_at, added_at, shrink_at, shrink_bias_at, seen_at, wide_at, shrunk_at, largest_at,
    batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, ADDED: tl.constexpr, LEARN: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The first convolution, and the first of the first bottleneck.

    What the one sees is stored as well, to learn: to gather it again for the gradients would take three times as long.
    """
    place, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    x = far(x_at, i, j, image, inside, batch, reverse, CHANNELS, HEIGHT, WIDTH, COLUMNS, 25)
    if LEARN:
        tl.store(seen_at + maps_at(place, image, batch, COLUMNS), x.to(seen_at.dtype.element_ty), inside[:, None])
    wide = times(x, first_at, WIDE, COLUMNS, COLUMNS, PRECISION)
    wide = biased(wide, first_bias_at, added_at, image, inside, WIDE, ADDED).to(wide_at.dtype.element_ty)
    tl.store(wide_at + maps_at(place, image, batch, WIDE), wide, inside[:, None])
    shrunk = times(rectified(wide), shrink_at, NARROW, WIDE, WIDE, PRECISION)
    shrunk = rectified(biased(shrunk, shrink_bias_at, added_at, image, inside, NARROW, 0))
    tl.store(shrunk_at + maps_at(place, image, batch, NARROW), shrunk.to(shrunk_at.dtype.element_ty), inside[:, None])
    if CHECK:
        _note_largest(largest_at, image, inside, rectified(wide))
        _note_largest(largest_at, image, inside, shrunk)


@triton.jit(do_not_specialize=["batch", "reverse"])
def bottleneck(
    shrunk_at, wide_at, look_at, look_bias_at, added_at, grow_at, grow_bias_at, next_at, next_bias_at, x_at,
    inner_at, wide_next_at, out_at, largest_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    HEAD: tl.constexpr, OUTPUTS: tl.constexpr, ADDED: tl.constexpr, LAST: tl.constexpr, LEARN: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The second and third convolutions of a bottleneck, and what comes next: another one's first, or the head."""
    place, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    sums = tl.zeros((ROWS, NARROW), tl.float32)
    for near in tl.static_range(5):
        seen = near_maps(shrunk_at, i, j, near, image, batch, WIDTH, NARROW)
        sums += times(seen, look_at + near * NARROW, NARROW, NARROW, 5 * NARROW, PRECISION)
    inner = rectified(biased(sums, look_bias_at, added_at, image, inside, NARROW, ADDED))
    inner = inner.to(wide_at.dtype.element_ty)
    if LEARN:
        tl.store(inner_at + maps_at(place, image, batch, NARROW), inner, inside[:, None])
    at = maps_at(place, image, batch, WIDE)
    grown = times(inner, grow_at, WIDE, NARROW, NARROW, PRECISION)
    grown = biased(grown, grow_bias_at, added_at, image, inside, WIDE, 0)
    wide = (grown + tl.load(wide_at + at, inside[:, None], 0.0).to(tl.float32)).to(wide_at.dtype.element_ty)
    active = rectified(wide)
    if CHECK:
        _note_largest(largest_at, image, inside, inner)
        _note_largest(largest_at, image, inside, active)
    if LEARN or not LAST:
        tl.store(wide_next_at + at, wide, inside[:, None])
    if LAST:
        channel = tl.arange(0, HEAD)
        feature = features(place, channel, reverse, HEIGHT * WIDTH, CHANNELS)
        here = feature[None, :] * batch.to(tl.int64) + image[:, None]
        exists = (channel < CHANNELS)[None, :] & inside[:, None]
        for output in tl.static_range(OUTPUTS):
            told = times(active, next_at + output * (HEAD * WIDE), HEAD, WIDE, WIDE, PRECISION)
            told = biased(told, next_bias_at + output * HEAD, added_at, image, inside, HEAD, 0)
            if output == 0:
                told += tl.load(x_at + here, exists, 0.0)
            tl.store(out_at + output * (CHANNELS * HEIGHT * WIDTH) * batch.to(tl.int64) + here, told, exists)
    else:
        shrunk = times(active, next_at, NARROW, WIDE, WIDE, PRECISION)
        shrunk = rectified(biased(shrunk, next_bias_at, added_at, image, inside, NARROW, 0))
        tl.store(out_at + maps_at(place, image, batch, NARROW), shrunk.to(out_at.dtype.element_ty), inside[:, None])
        if CHECK:
            _note_largest(largest_at, image, inside, shrunk)


# ---------------------------------------------------------------- gradients


@triton.jit(do_not_specialize=["batch", "reverse"])
def begin_back(
    grad_at, scale_at, head_at, wide_at, grow_at, inner_at, grad_wide_at, grad_inner_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    HEAD: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Back through the head, and through the third convolution of the last bottleneck."""
    place, _, _, image, inside = _tile(batch, WIDTH, ROWS)
    grad_wide = tl.zeros((ROWS, WIDE), tl.float32)
    for output in tl.static_range(OUTPUTS):
        grad = head_gradient(
            grad_at, scale_at, output, place, image, inside, batch, reverse, CHANNELS, HEIGHT * WIDTH, HEAD
        )  # fmt: skip
        grad_wide = tl.dot(grad, _matrix(head_at + output * (HEAD * WIDE), HEAD, WIDE, WIDE), grad_wide)
    at = maps_at(place, image, batch, WIDE)
    grad_wide = _active(tl.load(wide_at + at, inside[:, None], 0.0), grad_wide).to(tl.float16)
    tl.store(grad_wide_at + at, grad_wide, inside[:, None])
    at = maps_at(place, image, batch, NARROW)
    grad_inner = tl.dot(grad_wide, _matrix(grow_at, WIDE, NARROW, NARROW))
    grad_inner = _active(tl.load(inner_at + at, inside[:, None], 0.0), grad_inner).to(tl.float16)
    tl.store(grad_inner_at + at, grad_inner, inside[:, None])


@triton.jit(do_not_specialize=["batch"])
def bottleneck_back(
    grad_inner_at, look_at, shrunk_at, shrink_at, wide_at, grad_next_at, before_at, inner_at,
    grad_shrunk_at, grad_wide_at, out_at, batch,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Back through the second and first convolutions of a bottleneck, and through what came before.

    That is another one's third convolution; or the first of all, of which everything is left to be added up by
    :func:`end_back`.
    """
    place, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    sums = tl.zeros((ROWS, NARROW), tl.float32)
    for near in tl.static_range(5):
        down, aside = i + 1 - near // 3, j + 1 - near % 3
        there = (down < HEIGHT) & (aside >= 0) & (aside < WIDTH)
        exists = image < tl.where(there, batch, 0)
        grad = tl.load(grad_inner_at + maps_at(down * WIDTH + aside, image, batch, NARROW), exists[:, None], 0.0)
        sums = tl.dot(grad, _matrix(look_at + near * NARROW, NARROW, NARROW, 5 * NARROW), sums)
    at = maps_at(place, image, batch, NARROW)
    shrunk = tl.load(shrunk_at + at, inside[:, None], 0.0)
    grad_shrunk = _active(shrunk, sums).to(tl.float16)
    tl.store(grad_shrunk_at + at, grad_shrunk, inside[:, None])
    where = maps_at(place, image, batch, WIDE)
    grad = tl.dot(grad_shrunk, _matrix(shrink_at, NARROW, WIDE, WIDE))
    grad = _active(tl.load(wide_at + where, inside[:, None], 0.0), grad)
    grad_wide = (grad + tl.load(grad_next_at + where, inside[:, None], 0.0).to(tl.float32)).to(tl.float16)
    tl.store(grad_wide_at + where, grad_wide, inside[:, None])
    if FIRST:
        column = tl.arange(0, COLUMNS)
        parts = tl.dot(grad_wide, _matrix(before_at, WIDE, COLUMNS, COLUMNS)).to(tl.float16)
        here = (column[None, :] * (HEIGHT * WIDTH) + place) * batch.to(tl.int64) + image[:, None]
        tl.store(out_at + here, parts, (column < 25 * CHANNELS)[None, :] & inside[:, None])
    else:
        grad_inner = tl.dot(grad_wide, _matrix(before_at, WIDE, NARROW, NARROW))
        grad_inner = _active(tl.load(inner_at + at, inside[:, None], 0.0), grad_inner).to(tl.float16)
        tl.store(out_at + at, grad_inner, inside[:, None])


@triton.jit(do_not_specialize=["batch", "reverse"])
def end_back(
    parts_at, grad_at, scale_at, grad_x_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of the image: of itself, and of all places that have seen it."""
    place, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    channel = tl.program_id(2)
    total = tl.zeros((ROWS,), tl.float32)
    for seen in tl.static_range(25):
        down, aside = i + 3 - seen // 7, j + 3 - seen % 7
        there = (down < HEIGHT) & (aside >= 0) & (aside < WIDTH)
        at = ((seen * CHANNELS + channel) * (HEIGHT * WIDTH) + down * WIDTH + aside) * batch.to(tl.int64) + image
        total += tl.load(parts_at + at, image < tl.where(there, batch, 0), 0.0).to(tl.float32)
    here = features(place, channel, reverse, HEIGHT * WIDTH, CHANNELS) * batch.to(tl.int64) + image
    tl.store(grad_x_at + here, tl.load(grad_at + here, inside, 0.0) + total / tl.load(scale_at), inside)
