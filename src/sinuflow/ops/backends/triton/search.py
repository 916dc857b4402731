"""Device functions of the certified search: the steps of :mod:`sinuflow.solvers.newton`, always inside a bracket."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def working_precision(x, target, EPSILON: tl.constexpr):
    """The residual that rounding alone explains."""
    return 8.0 * EPSILON * tl.maximum(tl.abs(x), tl.abs(target))


@triton.jit
def is_finite(x):
    """Whether x is finite: it may overflow after the search has converged."""
    return tl.abs(x) < float("inf")


@triton.jit
def next_guess(x, gap, slope, curvature, lowest, low, high, last):
    """Where to go from x, and a bracket narrowed by what the mean value theorem says.

    The step goes to the nearer root of the local parabola. It is replaced by the middle of the
    bracket if it leaves it, or if the residual has not halved since the step before.
    """
    highest = 2.0 - lowest
    near = x - gap / highest
    far = x - gap / lowest
    low = tl.maximum(low, tl.where(gap > 0, far, near))
    high = tl.minimum(high, tl.where(gap > 0, near, far))
    divisor = slope + tl.sqrt(tl.abs(slope * slope - 2.0 * gap * curvature))
    divisor = tl.minimum(tl.maximum(divisor, 2.0 * lowest), 2.0 * highest)
    step = x - 2.0 * gap / divisor
    trusted = (step >= low) & (step <= high) & (tl.abs(gap) <= 0.5 * last)
    return tl.where(trusted, step, 0.5 * (low + high)), low, high


@triton.jit
def last_step(done, x, gap, slope, curvature):
    """From where the residual is good enough, further, with what rounding takes of x there, and the slope: what is left
    of a residual would grow in the layers to come. Where the function bends within rounding, x stays.
    """
    step = gap / slope
    straight = done & (tl.abs(step * curvature) <= 0.01 * slope) & (tl.abs(step) <= 2e-4)
    after = tl.where(straight, x - step, x)
    return after, tl.where(straight, (x - after) - step, 0.0), slope + curvature * (after - x)


@triton.jit
def advance(
    x, rest, target, gap, slope, curvature, lowest, low, high, last, settled, residual, found_slope, done, used,
    evaluations, limit, EPSILON: tl.constexpr,
):  # fmt: skip
    """What one evaluation at x changes, ``slope`` and ``curvature`` being those there.

    What is settled stays as it is, however long others search: so a row's answer is its own. Returned are x and what
    rounding took of it, the bracket, the size of the gap, and then all that is known of what is settled: whether it is,
    the residual, the slope at the answer, whether the residual was good enough, and the evaluations that it took.
    """
    off = tl.abs(gap)
    good = off <= working_precision(x, target, EPSILON)
    stop = good | (off != off) | (evaluations >= limit)
    after, missed, after_slope = last_step(good, x, gap, slope, curvature)
    step, low, high = next_guess(x, gap, slope, curvature, lowest, low, high, last)
    rest = tl.where(settled, rest, missed)
    residual = tl.where(settled, residual, off)
    found_slope = tl.where(settled, found_slope, after_slope)
    done = tl.where(settled, done, good)
    used = tl.where(settled, used, evaluations)
    x = tl.where(settled, x, tl.where(stop, after, step))
    return x, rest, low, high, off, settled | stop, residual, found_slope, done, used
