"""Forward and backward kernels of a PixelCNN: float16 with float32 accumulation in training, 3xTF32 otherwise.

A program takes one pixel of a tile of images, with all feature maps. Maps are stored as [pixel][image][map], so that a
neighbour of the pixel is a tile as well, either inside of all images or of none. Consecutive pointwise layers stay in
registers.

Matrices are as in :mod:`sinuflow.ops.backends.cuda.pixels.layout`: rows are maps, columns are [tap][map].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(batch, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """This program's pixel, its row and column, its images, and their mask."""
    pixel = tl.program_id(0)
    image = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    return pixel, pixel // WIDTH, pixel % WIDTH, image, image < batch


@triton.jit
def maps_at(pixel, image, batch, MAPS: tl.constexpr):
    """Offsets of the maps of a pixel, (ROWS, MAPS)."""
    at = (pixel * batch + image).to(tl.int64) * MAPS
    return at[:, None] + tl.arange(0, MAPS)[None, :]


@triton.jit
def _load_matrix(weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """A matrix (ROWS, COLUMNS)."""
    return tl.load(weights_at + tl.arange(0, ROWS)[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :])


@triton.jit
def features(pixel, channel, reverse, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Features of a batch for some channels of some pixels."""
    feature = channel * PIXELS + pixel
    return tl.where(reverse != 0, CHANNELS * PIXELS - 1 - feature, feature)


@triton.jit
def patch(
    x_at, i, j, image, inside, batch, reverse, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The patch of the first convolution, 7 columns wide, for its first taps: (ROWS, COLUMNS)."""
    index = tl.arange(0, COLUMNS)
    tap, channel = index // CHANNELS, index % CHANNELS
    row, column = i + tap // 7 - 3, j + tap % 7 - 3
    exists = (tap < TAPS) & (row >= 0) & (column >= 0) & (column < WIDTH)
    feature = features(row * WIDTH + column, channel, reverse, HEIGHT * WIDTH, CHANNELS)
    at = feature[None, :] * batch.to(tl.int64) + image[:, None]
    return tl.load(x_at + at, exists[None, :] & inside[:, None], 0.0)


@triton.jit
def head_gradient(
    grad_at, scale_at, output, pixel, image, inside, batch, reverse, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    HEAD: tl.constexpr,
):  # fmt: skip
    """The scaled gradient of one output, (ROWS, HEAD)."""
    channel = tl.arange(0, HEAD)
    feature = output * (CHANNELS * PIXELS) + features(pixel, channel, reverse, PIXELS, CHANNELS)
    at = feature[None, :] * batch.to(tl.int64) + image[:, None]
    grad = tl.load(grad_at + at, (channel < CHANNELS)[None, :] & inside[:, None], 0.0)
    return (grad * tl.load(scale_at)).to(tl.float16)


@triton.jit
def neighbour_maps(reduced_at, i, j, tap: tl.constexpr, image, batch, WIDTH: tl.constexpr, NARROW: tl.constexpr):
    """The maps at one of the five taps of a masked 3x3 convolution."""
    row, column = i + tap // 3 - 1, j + tap % 3 - 1
    exists = image < tl.where((row >= 0) & (column >= 0) & (column < WIDTH), batch, 0)
    return tl.load(reduced_at + maps_at(row * WIDTH + column, image, batch, NARROW), exists[:, None], 0.0)


@triton.jit
def relu(maps):
    """The positive part, in the same precision; NaN stays."""
    return tl.where(maps <= 0.0, tl.zeros_like(maps), maps)


@triton.jit
def _relu_backward(units_at, at, inside, gradient):
    """The gradient through a ReLU with these outputs."""
    return tl.where(tl.load(units_at + at, inside[:, None], 0.0) <= 0.0, 0.0, gradient)


@triton.jit
def _expand_backward(
    grad_wide, expand_at, hidden_at, grad_hidden_at, at, inside, WIDE: tl.constexpr, NARROW: tl.constexpr
):
    """Backward through the third convolution of a bottleneck."""
    grad_hidden = tl.dot(grad_wide, _load_matrix(expand_at, WIDE, NARROW, NARROW))
    grad_hidden = _relu_backward(hidden_at, at, inside, grad_hidden).to(tl.float16)
    tl.store(grad_hidden_at + at, grad_hidden, inside[:, None])


@triton.jit
def add_bias(sums, biases_at, MAPS: tl.constexpr, added_at=0, image=0, inside=0, ADDED: tl.constexpr = 0):
    """With biases, and with what the context adds to the maps of an image, if ADDED is not 0."""
    maps = tl.arange(0, MAPS)
    sums += tl.load(biases_at + maps)[None, :]
    if ADDED > 0:
        sums += tl.load(added_at + image[:, None] * ADDED + maps[None, :], inside[:, None], 0.0)
    return sums


@triton.jit
def matmul(maps, weights_at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """The product of maps (tile, COLUMNS) with the transpose of a matrix (ROWS, COLUMNS), in its precision.

    Of float32: each number is the sum of two TF32 numbers, and three products are added.
    """
    transposed = tl.load(weights_at + tl.arange(0, ROWS)[None, :] * STRIDE + tl.arange(0, COLUMNS)[:, None])
    return tl.dot(maps.to(transposed.dtype), transposed, input_precision="tf32x3")


@triton.jit
def _update_largest(largest_at, image, inside, maps):
    tl.atomic_max(largest_at + image, tl.max(maps.to(tl.float32), 1), inside)


@triton.jit
def _reduce(
    active, weights_at, biases_at, reduced_at, largest_at, pixel, image, inside, batch,
    WIDE: tl.constexpr, NARROW: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """The first convolution of a bottleneck."""
    reduced = relu(add_bias(matmul(active, weights_at, NARROW, WIDE, WIDE), biases_at, NARROW))
    reduced_at += maps_at(pixel, image, batch, NARROW)
    tl.store(reduced_at, reduced.to(reduced_at.dtype.element_ty), inside[:, None])
    if CHECK:
        _update_largest(largest_at, image, inside, reduced)


@triton.jit(do_not_specialize=["batch", "reverse"])
def first_layers(
    x_at, first_at, first_bias_at, added_at, reduce_at, reduce_bias_at, patch_at, wide_at, reduced_at, largest_at,
    batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, ADDED: tl.constexpr, LEARN: tl.constexpr, CHECK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The first convolution, and the first one of the first bottleneck.

    In training, patches are stored: gathering them again for the gradients would take three times as long.
    """
    pixel, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    x = patch(x_at, i, j, image, inside, batch, reverse, CHANNELS, HEIGHT, WIDTH, COLUMNS, 25)
    if LEARN:
        tl.store(patch_at + maps_at(pixel, image, batch, COLUMNS), x.to(patch_at.dtype.element_ty), inside[:, None])
    wide = matmul(x, first_at, WIDE, COLUMNS, COLUMNS)
    wide = add_bias(wide, first_bias_at, WIDE, added_at, image, inside, ADDED).to(wide_at.dtype.element_ty)
    tl.store(wide_at + maps_at(pixel, image, batch, WIDE), wide, inside[:, None])
    active = relu(wide)
    if CHECK:
        _update_largest(largest_at, image, inside, active)
    _reduce(active, reduce_at, reduce_bias_at, reduced_at, largest_at, pixel, image, inside, batch, WIDE, NARROW, CHECK)


@triton.jit(do_not_specialize=["batch", "reverse"])
def bottleneck(
    reduced_at, wide_at, conv_at, conv_bias_at, added_at, expand_at, expand_bias_at, next_at, next_bias_at, x_at,
    hidden_at, wide_next_at, out_at, largest_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    HEAD: tl.constexpr, OUTPUTS: tl.constexpr, ADDED: tl.constexpr, LAST: tl.constexpr, LEARN: tl.constexpr,
    CHECK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The second and third convolutions of a bottleneck, then the first of the next, or the head."""
    pixel, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    sums = tl.zeros((ROWS, NARROW), tl.float32)
    for tap in tl.static_range(5):
        maps = neighbour_maps(reduced_at, i, j, tap, image, batch, WIDTH, NARROW)
        sums += matmul(maps, conv_at + tap * NARROW, NARROW, NARROW, 5 * NARROW)
    hidden = relu(add_bias(sums, conv_bias_at, NARROW, added_at, image, inside, ADDED)).to(wide_at.dtype.element_ty)
    if LEARN:
        tl.store(hidden_at + maps_at(pixel, image, batch, NARROW), hidden, inside[:, None])
    at = maps_at(pixel, image, batch, WIDE)
    expanded = add_bias(matmul(hidden, expand_at, WIDE, NARROW, NARROW), expand_bias_at, WIDE)
    wide = (expanded + tl.load(wide_at + at, inside[:, None], 0.0).to(tl.float32)).to(wide_at.dtype.element_ty)
    active = relu(wide)
    if CHECK:
        _update_largest(largest_at, image, inside, hidden)
        _update_largest(largest_at, image, inside, active)
    if LEARN or not LAST:
        tl.store(wide_next_at + at, wide, inside[:, None])
    if LAST:
        channel = tl.arange(0, HEAD)
        feature = features(pixel, channel, reverse, HEIGHT * WIDTH, CHANNELS)
        here = feature[None, :] * batch.to(tl.int64) + image[:, None]
        exists = (channel < CHANNELS)[None, :] & inside[:, None]
        for output in tl.static_range(OUTPUTS):
            values = matmul(active, next_at + output * (HEAD * WIDE), HEAD, WIDE, WIDE)
            values = add_bias(values, next_bias_at + output * HEAD, HEAD)
            if output == 0:
                values += tl.load(x_at + here, exists, 0.0)
            tl.store(out_at + output * (CHANNELS * HEIGHT * WIDTH) * batch.to(tl.int64) + here, values, exists)
    else:
        _reduce(active, next_at, next_bias_at, out_at, largest_at, pixel, image, inside, batch, WIDE, NARROW, CHECK)


# ---------------------------------------------------------------- gradients


@triton.jit(do_not_specialize=["batch", "reverse"])
def head_backward(
    grad_at, scale_at, head_at, wide_at, expand_at, hidden_at, grad_wide_at, grad_hidden_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    HEAD: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Backward through the head and the third convolution of the last bottleneck."""
    pixel, _, _, image, inside = _tile(batch, WIDTH, ROWS)
    grad_wide = tl.zeros((ROWS, WIDE), tl.float32)
    for output in tl.static_range(OUTPUTS):
        grad = head_gradient(
            grad_at, scale_at, output, pixel, image, inside, batch, reverse, CHANNELS, HEIGHT * WIDTH, HEAD
        )  # fmt: skip
        grad_wide = tl.dot(grad, _load_matrix(head_at + output * (HEAD * WIDE), HEAD, WIDE, WIDE), grad_wide)
    at = maps_at(pixel, image, batch, WIDE)
    grad_wide = _relu_backward(wide_at, at, inside, grad_wide).to(tl.float16)
    tl.store(grad_wide_at + at, grad_wide, inside[:, None])
    at = maps_at(pixel, image, batch, NARROW)
    _expand_backward(grad_wide, expand_at, hidden_at, grad_hidden_at, at, inside, WIDE, NARROW)


@triton.jit(do_not_specialize=["batch"])
def bottleneck_backward(
    grad_hidden_at, conv_at, reduced_at, reduce_at, wide_at, grad_next_at, before_at, hidden_at,
    grad_reduced_at, grad_wide_at, out_at, batch,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Backward through the second and first convolutions of a bottleneck, and through the layer before.

    That is the third convolution of another bottleneck, or the first convolution, the gradients of whose patches are
    accumulated by :func:`input_gradient`.
    """
    pixel, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    sums = tl.zeros((ROWS, NARROW), tl.float32)
    for tap in tl.static_range(5):
        row, column = i + 1 - tap // 3, j + 1 - tap % 3
        exists = image < tl.where((row < HEIGHT) & (column >= 0) & (column < WIDTH), batch, 0)
        grad = tl.load(grad_hidden_at + maps_at(row * WIDTH + column, image, batch, NARROW), exists[:, None], 0.0)
        sums = tl.dot(grad, _load_matrix(conv_at + tap * NARROW, NARROW, NARROW, 5 * NARROW), sums)
    at = maps_at(pixel, image, batch, NARROW)
    grad_reduced = _relu_backward(reduced_at, at, inside, sums).to(tl.float16)
    tl.store(grad_reduced_at + at, grad_reduced, inside[:, None])
    where = maps_at(pixel, image, batch, WIDE)
    grad = tl.dot(grad_reduced, _load_matrix(reduce_at, NARROW, WIDE, WIDE))
    grad = _relu_backward(wide_at, where, inside, grad)
    grad_wide = (grad + tl.load(grad_next_at + where, inside[:, None], 0.0).to(tl.float32)).to(tl.float16)
    tl.store(grad_wide_at + where, grad_wide, inside[:, None])
    if FIRST:
        index = tl.arange(0, COLUMNS)
        grad_patch = tl.dot(grad_wide, _load_matrix(before_at, WIDE, COLUMNS, COLUMNS)).to(tl.float16)
        here = (index[None, :] * (HEIGHT * WIDTH) + pixel) * batch.to(tl.int64) + image[:, None]
        tl.store(out_at + here, grad_patch, (index < 25 * CHANNELS)[None, :] & inside[:, None])
    else:
        _expand_backward(grad_wide, before_at, hidden_at, out_at, at, inside, WIDE, NARROW)


@triton.jit(do_not_specialize=["batch", "reverse"])
def input_gradient(
    grad_patch_at, grad_at, scale_at, grad_x_at, batch, reverse,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of the image: through the identity, and through all patches that contain the pixel."""
    pixel, i, j, image, inside = _tile(batch, WIDTH, ROWS)
    channel = tl.program_id(2)
    total = tl.zeros((ROWS,), tl.float32)
    for tap in tl.static_range(25):
        row, column = i + 3 - tap // 7, j + 3 - tap % 7
        exists = image < tl.where((row < HEIGHT) & (column >= 0) & (column < WIDTH), batch, 0)
        at = ((tap * CHANNELS + channel) * (HEIGHT * WIDTH) + row * WIDTH + column) * batch.to(tl.int64) + image
        total += tl.load(grad_patch_at + at, exists, 0.0).to(tl.float32)
    here = features(pixel, channel, reverse, HEIGHT * WIDTH, CHANNELS) * batch.to(tl.int64) + image
    tl.store(grad_x_at + here, tl.load(grad_at + here, inside, 0.0) + total / tl.load(scale_at), inside)
