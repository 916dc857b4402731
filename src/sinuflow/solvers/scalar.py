"""Root finding for increasing functions of one variable, elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .result import Root

#: Evaluations before the first check of residuals; most elements have converged by then.
_FIRST_CHECK = {torch.float32: 3, torch.float64: 4}
#: Evaluations before the safeguarded iteration takes over.
_MAX_UNSAFEGUARDED = 12
#: With at most this number of elements, removing converged ones from the batch costs more than it saves.
_MIN_COMPACTED = 4096
#: Bound on the evaluation noise of f, in multiples of the rounding error of its value and of its argument, which are
#: taken as at least 1: a spline on [-5, 5] has absolute errors near 0, too.
_NOISE = 256
#: With at least this number of elements, one of them nearly always needs another evaluation before the first check.
_LARGE_BATCH = 512

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MonotoneFunction(Protocol):
    """A strictly increasing function of one variable, one per element of a tensor, with bounds m > 0 and M of f'.

    ``evaluate`` returns f(x), f'(x) and f''(x), which the caller may overwrite, as does the next evaluation; ``guess``
    returns a starting point, ``bracket`` an interval that contains the solution, and ``select`` the functions of the
    elements (rows[j], columns[j]), with shape (1, count).
    """

    @property
    def lowest_slope(self) -> Tensor: ...
    @property
    def highest_slope(self) -> Tensor: ...
    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...
    def guess(self, target: Tensor) -> Tensor: ...
    def bracket(self, target: Tensor) -> tuple[Tensor, Tensor]: ...
    def select(self, rows: Tensor, columns: Tensor) -> MonotoneFunction: ...


def working_precision(x: Tensor, target: Tensor) -> Tensor:
    """The residual that rounding alone can cause, which is relative to x and the target."""
    return torch.maximum(x.abs(), target.abs()).mul_(8 * torch.finfo(x.dtype).eps)


def newton(
    function: MonotoneFunction, target: Tensor, max_iterations: int = 200, start: Tensor | None = None, used: int = 0
) -> Root:
    r"""Solve f(x) = target for a strictly increasing f, to working precision.

    A step goes to the nearer root of the parabola through f(x), f'(x) and f''(x),

    .. math:: x \leftarrow x - \frac{2 r}{f' + \sqrt{|f'^2 - 2 r f''|}}, \qquad r = f(x) - \text{target},

    (Laguerre's iteration of degree two, which converges cubically, and from distant starting points fails less often
    than Newton's or Halley's). The divisor is clamped to the bounds of f', so that no step leaves the interval that the
    mean value theorem allows. Most elements converge within three evaluations; when few remain, converged elements are
    removed from the batch, and the iteration continues from ``start`` after ``used`` evaluations. Elements that have
    not converged after a dozen are safeguarded: they bisect a bracket of the solution whenever a step leaves it or does
    not halve the residual, which guarantees convergence. Converged elements take one more step with the last
    evaluation, because residuals are amplified along a chain.
    """
    x = function.guess(target) if start is None else start
    next_check = min(used + 1 if used else _FIRST_CHECK[x.dtype] + (x.numel() >= _LARGE_BATCH), max_iterations)
    lowest, highest = 2 * function.lowest_slope, 2 * function.highest_slope
    divisor = torch.empty_like(x)
    while True:
        value, slope, curvature = function.evaluate(x)
        gap = value.sub_(target)
        used += 1
        if used >= next_check:
            residual = gap.abs()
            converged = residual <= working_precision(x, target)
            remaining = converged.numel() - int(converged.sum())
            compact = converged.numel() > _MIN_COMPACTED and 4 * remaining < converged.numel()
            if remaining == 0 or compact or used >= min(_MAX_UNSAFEGUARDED, max_iterations):
                break
        divisor = _twice_divisor(gap, slope, curvature, lowest, highest, divisor)
        x.addcdiv_(gap, divisor, value=-2)
    after, slope_after = _last_step(converged, x, gap, slope, curvature)
    root = Root(after, slope_after, torch.full_like(x, used, dtype=torch.int32), residual, converged)
    if remaining and used < max_iterations:
        index = (~converged).flatten().nonzero().squeeze(1)
        selected = function.select(index // x.shape[-1], index % x.shape[-1])
        target, x, gap, slope, curvature = (
            t.reshape(-1).index_select(0, index).unsqueeze(0) for t in (target, x, gap, slope, curvature)
        )
        if used < _MAX_UNSAFEGUARDED:
            lowest, highest = 2 * selected.lowest_slope, 2 * selected.highest_slope
            x = torch.addcdiv(x, gap, _twice_divisor(gap, slope, curvature, lowest, highest), value=-2)
            part = newton(selected, target, max_iterations, x, used)
        else:
            part = _safeguarded(selected, target, x, used, max_iterations)
        pairs = zip(root, part, strict=True)
        root = Root(*(t.reshape(-1).index_copy_(0, index, some.squeeze(0)).view(t.shape) for t, some in pairs))
    return root


def _twice_divisor(
    gap: Tensor, slope: Tensor, curvature: Tensor, lowest: Tensor, highest: Tensor, out: Tensor | None = None
) -> Tensor:
    root = torch.mul(slope, slope, out=out).addcmul_(gap, curvature, value=-2).abs_().sqrt_()
    return root.add_(slope).clamp_(lowest, highest)


def _last_step(converged: Tensor, x: Tensor, gap: Tensor, slope: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Converged elements after one more step where the function is nearly linear, and the slope there."""
    step = gap / slope
    # Over a step of 2e-4, waves of any reasonable frequency are nearly linear.
    linear = ((step * curvature).abs_() <= 0.01 * slope) & (step.abs() <= 2e-4)
    after = torch.where(converged & linear, x - step, x)
    return after, torch.addcmul(slope, curvature, after - x)


def _safeguarded(function: MonotoneFunction, target: Tensor, x: Tensor, used: int, max_iterations: int) -> Root:
    """The steps of :func:`newton` inside a bracket, which every evaluation narrows."""
    lowest, highest = function.lowest_slope, function.highest_slope
    low, high = function.bracket(target)
    previous = torch.full_like(x, torch.inf)
    iterations = torch.full_like(x, used, dtype=torch.int32)
    while True:
        value, slope, curvature = function.evaluate(x)
        gap = value - target
        residual = gap.abs()
        converged = residual <= working_precision(x, target)
        if used >= max_iterations or bool((converged | ~residual.isfinite()).all()):
            return Root(*_last_step(converged, x, gap, slope, curvature), iterations, residual, converged)
        used += 1
        iterations = torch.where(converged, iterations, used)
        above = gap > 0
        # The mean value theorem bounds the solution from both sides of x at once.
        near, far = x - gap / highest, x - gap / lowest
        low = torch.maximum(low, torch.where(above, far, near))
        high = torch.minimum(high, torch.where(above, near, far))
        step = x - 2 * gap / _twice_divisor(gap, slope, curvature, 2 * lowest, 2 * highest)
        trusted = (step > low) & (step < high) & (residual <= previous / 2)
        previous = residual
        x = torch.where(converged, x, torch.where(trusted, step, (low + high) / 2))


def bracketed_newton(evaluate: Evaluate, target: Tensor, h: Tensor, max_iterations: int = 200) -> Root:
    r"""Solve f(x; h) = target for functions that increase in x, elementwise.

    A bracket around the target is doubled until it contains the solution. Newton steps that leave the bracket, or that
    do not halve the residual, are replaced by bisection. An element has converged when rounding of x, of the target, or
    of f between neighbouring floating-point numbers, :math:`f'(x) \, |x| \, \epsilon`, explains its residual; or when
    its bracket contains no further floating-point number, unless f jumps there. The target has shape (D, B), and h
    (D, P, B); ``evaluate`` returns f(x; h) and f'(x; h) for a selection of n elements, x of shape (1, n) and h of
    shape (1, P, n).

    Example:
        >>> root = bracketed_newton(lambda x, h: (x.sinh(), x.cosh()), torch.tensor([[10.0]]), torch.zeros(1, 0, 1))
        >>> bool((root.x - 2.998222950297969).abs() < 1e-6), bool(root.converged)
        (True, True)
    """
    shape = target.shape
    target, h = target.reshape(1, -1), h.transpose(0, 1).reshape(1, h.shape[1], target.numel())
    all_targets, all_h = target, h
    low, high = _bracket(evaluate, target, h)
    x = target.clamp(low, high)
    previous = torch.full_like(x, torch.inf)
    root = Root(*(torch.zeros_like(x, dtype=d) for d in (x.dtype, x.dtype, torch.int32, x.dtype, torch.bool)))
    active = torch.arange(x.numel(), device=x.device)
    for used in range(1, max_iterations + 1):
        value, slope = evaluate(x, h)
        gap = value - target
        residual = gap.abs()
        low, high = torch.where(gap <= 0, x, low), torch.where(gap >= 0, x, high)
        rounding = working_precision(x, target) + 4 * torch.finfo(x.dtype).eps * (slope * x).abs()
        converged = residual.isfinite() & ((residual <= rounding) | (torch.nextafter(low, high) >= high))
        for result, part in zip(root, (x, slope, torch.full_like(active, used), residual, converged), strict=True):
            result[:, active] = part.to(result.dtype)
        remaining = (~converged & residual.isfinite()).squeeze(0).nonzero().squeeze(1)
        if not len(remaining):
            break
        newton = x - gap / slope
        accepted = (newton > low) & (newton < high) & (residual <= previous / 2)
        x, previous = torch.where(accepted, newton, low + (high - low) / 2), residual
        active = active[remaining]
        target, h, low, high, x, previous = (t[..., remaining] for t in (target, h, low, high, x, previous))
    _refuse_jumps(evaluate, root, all_targets, all_h)
    return Root(*(t.view(shape) for t in root))


def _refuse_jumps(evaluate: Evaluate, root: Root, target: Tensor, h: Tensor) -> None:
    """Mark elements as not converged if neither evaluation noise nor the slope next to x explains their residual."""

    def bound(slope: Tensor) -> Tensor:
        return ((1 + slope) * (1 + root.x.abs()) + target.abs()).mul_(_NOISE * torch.finfo(target.dtype).eps)

    doubtful = (root.converged & (root.residual > bound(root.slope))).squeeze(0).nonzero().squeeze(1)
    if len(doubtful):  # at a kink, the slope may be larger on the other side
        x, h, slope = root.x[:, doubtful], h[..., doubtful], root.slope.clone()
        below, above = (evaluate(torch.nextafter(x, torch.full_like(x, end)), h)[1] for end in (-math.inf, math.inf))
        slope[:, doubtful] = torch.maximum(below, above)
        root.converged.logical_and_(root.residual <= bound(slope))


def _bracket(evaluate: Evaluate, target: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """An interval with f(low) <= target <= f(high), or NaN if none is found."""
    width = 1 + target.abs()
    low, high = target - width, target + width
    for _ in range(128):
        value_low, value_high = evaluate(low, h)[0], evaluate(high, h)[0]
        below, above = value_low <= target, value_high >= target
        if bool((below & above).all()):
            break
        failed = value_low.isnan() | value_high.isnan() | ~(low.isfinite() & high.isfinite())
        if bool(((below & above) | failed).all()):
            break
        low, high = torch.where(below, low, low - width), torch.where(above, high, high + width)
        width = 2 * width
    valid = below & above & low.isfinite() & high.isfinite()
    return torch.where(valid, low, torch.nan), torch.where(valid, high, torch.nan)


def fixed_point(function: MonotoneFunction, target: Tensor, *, rtol: float, atol: float, max_iterations: int) -> Root:
    r"""Solve f(x) = target by :math:`x_{j+1} = z - (f(x_j) - x_j)`, from :math:`x_0 = z`.

    Algorithm 1 of the paper. It converges whenever :math:`f - \mathrm{id}` is a contraction, at the rate of its
    Lipschitz constant, and stops when :math:`|x_{j+1} - x_j| \le \text{atol} + \text{rtol}\,|x_j|`. The difference of
    two iterates is the residual :math:`z - f(x_j)`, so the test is a certificate for the :math:`x_j` that it returns.
    """
    x = target.clone()
    iterations = torch.zeros_like(x, dtype=torch.int32)
    converged = torch.zeros_like(x, dtype=torch.bool)
    for used in range(1, max_iterations + 1):
        value, slope, _ = function.evaluate(x)
        residual = (value - target).abs()
        iterations += ~converged  # counts elements that had not converged before
        converged = residual.isfinite() & (residual <= atol + rtol * x.abs())
        if used == max_iterations or bool(converged.all()):
            break
        x = torch.where(converged, x, target - (value - x))
    return Root(x, slope.clone(), iterations, residual, converged)
