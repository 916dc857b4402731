"""Steps of the safeguarded Newton iteration of :mod:`sinuflow.solvers.scalar`, always inside a bracket."""

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
    """The next iterate, and the bracket narrowed by the mean value theorem.

    The step goes to the nearer root of the local parabola; if it leaves the bracket, or the residual has not halved
    since the step before, to the midpoint of the bracket.
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
def last_step(converged, x, gap, slope, curvature):
    """A last step of converged rows, its rounding error, and the slope there: a residual would grow in the next layers.

    Where the function bends within rounding, x stays.
    """
    step = gap / slope
    straight = converged & (tl.abs(step * curvature) <= 0.01 * slope) & (tl.abs(step) <= 2e-4)
    after = tl.where(straight, x - step, x)
    return after, tl.where(straight, (x - after) - step, 0.0), slope + curvature * (after - x)


@triton.jit
def advance(
    x, rest, target, gap, slope, curvature, lowest, low, high, last, finished, residual, slope_found, converged,
    iterations, evaluations, limit, EPSILON: tl.constexpr,
):  # fmt: skip
    """One iteration, given gap, slope and curvature at x: the new state, in the order of the arguments.

    Finished rows do not change any more, so that a row's result does not depend on the others.
    """
    residual_now = tl.abs(gap)
    converged_now = residual_now <= working_precision(x, target, EPSILON)
    stop = converged_now | (residual_now != residual_now) | (evaluations >= limit)
    after, missed, after_slope = last_step(converged_now, x, gap, slope, curvature)
    step, low, high = next_guess(x, gap, slope, curvature, lowest, low, high, last)
    rest = tl.where(finished, rest, missed)
    residual = tl.where(finished, residual, residual_now)
    slope_found = tl.where(finished, slope_found, after_slope)
    converged = tl.where(finished, converged, converged_now)
    iterations = tl.where(finished, iterations, evaluations)
    x = tl.where(finished, x, tl.where(stop, after, step))
    return x, rest, low, high, residual_now, finished | stop, residual, slope_found, converged, iterations
