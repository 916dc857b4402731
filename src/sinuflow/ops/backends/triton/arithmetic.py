"""Elementary device functions: sine and cosine, softplus, softmax, compensated sums."""

from __future__ import annotations

import triton
import triton.language as tl

from ... import conditional_waves

#: A constant in kernels; Triton's interpreter takes it on the right of a tensor only.
LOG_SCALE_MAX = tl.constexpr(conditional_waves.LOG_SCALE_MAX)


@triton.jit
def _reduced(u):
    """Sine and cosine of r = u - n π/2, about [-π/4, π/4], by float32 polynomials; the last two of the bits are n's."""
    # The sum with 1.5 * 2^23 is rounded to an integer, which is in its last bits.
    rounded = u * 0.6366197723675814 + 12582912.0
    quarter = rounded - 12582912.0
    # π/2 in three parts, so that the remainder keeps its digits.
    r = tl.fma(quarter, -1.5707964, u)
    r = tl.fma(quarter, 4.371139e-08, r)
    r = tl.fma(quarter, 1.7151245e-15, r)
    # Beyond 2^22 quarters the remainder is noise: clamp it, so that slopes stay positive. The bound exceeds π/4 a
    # little, because 2/π is rounded.
    r = tl.where(r < -0.8, -0.8, r)  # NaN stays
    r = tl.where(r > 0.8, 0.8, r)
    s = r * r
    sine = r + r * s * (-1.6666654611e-1 + s * (8.3321608736e-3 + s * -1.9515295891e-4))
    cosine = 1.0 - 0.5 * s + s * s * (4.166664568298827e-2 + s * (-1.388731625493765e-3 + s * 2.443315711809948e-5))
    return sine, cosine, rounded.to(tl.int32, bitcast=True)


@triton.jit
def _reduced_float64(u):
    """The same in float64, for moderate u: an error of 1e-16, at a fraction of the cost of the library's functions."""
    rounded = u * 0.6366197723675814 + 6755399441055744.0
    quarter = rounded - 6755399441055744.0
    r = tl.fma(quarter, tl.full(u.shape, -1.5707963267948966, tl.float64), u)
    r = tl.fma(quarter, tl.full(u.shape, -6.123233995736766e-17, tl.float64), r)
    s = r * r
    odd = -2.50507602534068634195e-8 + s * 1.58969099521155010221e-10
    odd = 8.33333333332248946124e-3 + s * (-1.98412698298579493134e-4 + s * (2.75573137070700676789e-6 + s * odd))
    even = -2.75573143513906633035e-7 + s * (2.08757232129817482790e-9 - s * 1.13596475577881948265e-11)
    even = 4.16666666666666019037e-2 + s * (-1.38888888888741095749e-3 + s * (2.48015872894767294178e-5 + s * even))
    sine = r + r * s * (-1.66666666666666324348e-1 + s * odd)
    cosine = 1.0 - 0.5 * s + s * s * even
    return sine, cosine, rounded.to(tl.int64, bitcast=True)


@triton.jit
def sin_cos(u):
    """Sine and cosine, in float32 good to about one unit in the last place."""
    if u.dtype == tl.float64:
        sine = tl.sin(u)
        cosine = tl.cos(u)
    else:
        low, high, turn = _reduced(u)
        odd = (turn & 1) == 1
        sine = tl.where(odd, high, low)
        cosine = tl.where(odd, low, high)
        sine = tl.where((turn & 2) == 2, -sine, sine)
        cosine = tl.where(((turn + 1) & 2) == 2, -cosine, cosine)
    return sine, cosine


@triton.jit
def two_sum(x, more):
    """The sum of two numbers, and its rounding error."""
    total = x + more
    added = total - x
    return total, (x - (total - added)) + (more - added)


@triton.jit
def softplus(x):
    """log(1 + e^x) without overflow."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def log1p(x):
    """log(1 + x) for x in [0, 1]: with Kahan's correction for what 1 + x rounds away."""
    y = 1.0 + x
    return tl.log(y) - ((y - 1.0) - x) / y


@triton.jit
def tanh(x):
    """The hyperbolic tangent, exact to rounding near 0 as well."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    far = (1.0 - e) / (1.0 + e)
    square = x * x
    near = size * (1.0 + square * (-0.3333333333333333 + square * (0.13333333333333333 - square * 0.05396825396825397)))
    result = tl.where(size < 0.02, near, far)
    return tl.where(x < 0, -result, result)


@triton.jit
def wave_products(x, a, MIXED: tl.constexpr = False):
    """sin² u and sin u cos u for u = a x, which depend only on whether the number of quarter turns is odd.

    MIXED: whether x is a moderate float64 number and a was float32.
    """
    u = a * x
    if u.dtype == tl.float64 and not MIXED:
        sine = tl.sin(u)
        square = sine * sine
        product = sine * tl.cos(u)
    else:
        if MIXED:
            sine, cosine, turn = _reduced_float64(u)
        else:
            sine, cosine, turn = _reduced(u)
        odd = (turn & 1) == 1
        side = tl.where(odd, cosine, sine)
        square = side * side
        product = sine * cosine
        product = tl.where(odd, -product, product)
    return square, product


@triton.jit
def bounded_log_scale(r):
    """The bounded log-scale s = 2 tanh(r / 2)."""
    return tanh(r * (1.0 / LOG_SCALE_MAX)) * LOG_SCALE_MAX
