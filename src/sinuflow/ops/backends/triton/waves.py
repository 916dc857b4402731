"""One sinusoidal transformer on a tile: its waves, its value and its inverse.

The parameters of a wave are at an offset ``at`` from three addresses: a, p and q; or, of FREE waves, a frequency, a
phase and a weight as :mod:`sinuflow.ops.constrain` takes them, of which :func:`softmax` makes a ``factor``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ... import waves
from .arithmetic import sin_cos, softplus, wave_products

#: Constants in kernels; Triton's interpreter takes them on the right of a tensor only.
ALPHA_MAX, FREQUENCY_MIN, SLOW = map(tl.constexpr, (waves.ALPHA_MAX, waves.FREQUENCY_MIN, waves.SLOW))


@triton.jit
def softmax(weights_at, stride, here, WAVES: tl.constexpr):
    """The largest of some weights, and 1 / the sum of e^(w - largest)."""
    largest = tl.load(weights_at, here, 0.0)
    for k in tl.static_range(1, WAVES):
        largest = tl.maximum(largest, tl.load(weights_at + k * stride, here, 0.0))
    total = tl.zeros_like(largest)
    for k in tl.static_range(WAVES):
        total += tl.exp(tl.load(weights_at + k * stride, here, 0.0) - largest)
    return largest, 1.0 / total


@triton.jit
def wave(x, a_at, p_at, q_at, at, here, largest=0.0, factor=0.0, FREE: tl.constexpr = False):
    """a, p, q and the amplitude of a wave in the precision of x; a free one's is factor * e^(weight - largest)."""
    if FREE:
        a = softplus(tl.load(a_at + at, here, 0.0)) + FREQUENCY_MIN
        size = tl.exp(tl.load(q_at + at, here, 0.0) - largest) * factor
        sine, cosine = sin_cos(2.0 * tl.load(p_at + at, here, 0.0))
        p = size * cosine
        q = size * sine
    else:
        a = tl.load(a_at + at, here, 1.0).to(x.dtype)
        p = tl.load(p_at + at, here, 0.0).to(x.dtype)
        q = tl.load(q_at + at, here, 0.0).to(x.dtype)
        size = tl.sqrt(p * p + q * q)
    return a, p, q, size


@triton.jit
def evaluate(
    x, shift, a_at, p_at, q_at, at, stride, here, WAVES: tl.constexpr,
    largest=0.0, factor=0.0, FREE: tl.constexpr = False, MIXED: tl.constexpr = False,
):  # fmt: skip
    """τ(x) - x, 1 - τ'(x) and τ''(x).

    The waves are summed before x is added: added to x one by one, each would be rounded as x is.
    """
    rise = tl.zeros_like(x) + shift
    bend = tl.zeros_like(x)
    curvature = tl.zeros_like(x)
    if MIXED:  # clamp where float32 parameters have lost the phase of the waves; NaN stays
        x = tl.where(x > 67108864.0, 67108864.0, x)
        x = tl.where(x < -67108864.0, -67108864.0, x)
    for k in tl.static_range(WAVES):
        a, p, q, _ = wave(x, a_at, p_at, q_at, at + k * stride, here, largest, factor, FREE)
        square, product = wave_products(x, a, MIXED)
        cosine = 1.0 - 2.0 * square
        # A float64 division takes as long as a sine. A float32 division and a step of Newton's method leave a relative
        # error of 1e-14 of the rise, the same in forward and inverse.
        if MIXED:
            inverse = (1.0 / a.to(tl.float32)).to(x.dtype)
            inverse *= 2.0 - a * inverse
            rise += (q * inverse) * square - (p * inverse) * product
        else:
            rise += (q * square - p * product) / a
        bend += p * cosine - 2.0 * q * product
        curvature += 2.0 * a * (q * cosine + 2.0 * p * product)
    return rise, bend, curvature


@triton.jit
def solve(
    target, target_rest, shift, a_at, p_at, q_at, at, stride, here, limit, EPSILON: tl.constexpr, WAVES: tl.constexpr,
    largest=0.0, factor=0.0, FREE: tl.constexpr = False, MIXED: tl.constexpr = False,
):  # fmt: skip
    """The solution x of τ(x) = target + target_rest, its rounding error, slope, residual, convergence, and iterations.

    The iteration of :mod:`sinuflow.solvers.scalar`, always inside a bracket. Finished rows do not change any more, so
    that a row's result does not depend on the others.
    """
    amplitude = tl.zeros_like(shift)
    centre = shift  # τ(x) is within a radius of x + centre
    radius = tl.zeros_like(shift)
    tilt = tl.zeros_like(shift) + 1.0
    for k in tl.static_range(WAVES):
        a, p, q, size = wave(target, a_at, p_at, q_at, at + k * stride, here, largest, factor, FREE)
        amplitude += tl.abs(size)
        centre += 0.5 * q / a
        radius += 0.5 * tl.abs(size) / a
        slowness = (a / SLOW) * (a / SLOW)
        tilt -= p / (1.0 + slowness * slowness)
    lowest = 1.0 - tl.minimum(amplitude, ALPHA_MAX)
    highest = 2.0 - lowest
    middle = target - centre
    slack = 16.0 * EPSILON * (tl.abs(middle) + tl.abs(target) + radius)
    low = middle - radius - slack
    high = middle + radius + slack
    x = (target - shift) / tilt
    rest = target_rest
    last = tl.full(target.shape, float("inf"), target.dtype)
    residual, slope = last, last
    iterations = tl.zeros(target.shape, tl.int32)
    converged = iterations > 0
    finished = converged
    evaluations = 0
    left = 1
    while left > 0:
        rise, bend, curvature = evaluate(
            x, shift, a_at, p_at, q_at, at, stride, here, WAVES, largest, factor, FREE, MIXED
        )  # fmt: skip
        gap = (x - target) + (rise - target_rest)
        here_slope = 1.0 - bend
        evaluations += 1
        residual = tl.where(finished, residual, tl.abs(gap))
        converged_now = tl.abs(gap) <= 8.0 * EPSILON * tl.maximum(tl.abs(x), tl.abs(target))
        converged = tl.where(finished, converged, converged_now)
        iterations = tl.where(finished, iterations, evaluations)
        # Converged rows take a last step, because a residual would grow in the next layers; where the function bends
        # within rounding, x stays.
        newton = gap / here_slope
        straight = converged_now & (tl.abs(newton * curvature) <= 0.01 * here_slope) & (tl.abs(newton) <= 2e-4)
        after = tl.where(straight, x - newton, x)
        rest = tl.where(finished, rest, tl.where(straight, (x - after) - newton, 0.0))
        slope = tl.where(finished, slope, here_slope + curvature * (after - x))
        # The mean value theorem narrows the bracket. The others step to the nearer root of the local parabola; if that
        # leaves the bracket, or the residual has not halved since the step before, to the midpoint of the bracket.
        near = x - gap / highest
        far = x - gap / lowest
        low = tl.maximum(low, tl.where(gap > 0, far, near))
        high = tl.minimum(high, tl.where(gap > 0, near, far))
        divisor = here_slope + tl.sqrt(tl.abs(here_slope * here_slope - 2.0 * gap * curvature))
        divisor = tl.minimum(tl.maximum(divisor, 2.0 * lowest), 2.0 * highest)
        step = x - 2.0 * gap / divisor
        trusted = (step >= low) & (step <= high) & (tl.abs(gap) <= 0.5 * last)
        stop = converged_now | (gap != gap) | (evaluations >= limit)
        x = tl.where(finished, x, tl.where(stop, after, tl.where(trusted, step, 0.5 * (low + high))))
        last = tl.abs(gap)
        finished = finished | stop
        left = tl.max(tl.max(tl.where(finished, 0, 1), 1), 0)
    return x, rest, slope, residual, converged, iterations
