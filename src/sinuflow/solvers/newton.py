"""Local parabolas, safeguarded by bisection inside a proven bracket."""

from __future__ import annotations

import torch
from torch import Tensor

from .result import MonotoneFunction, Root, working_precision

#: Evaluations before the first look at the residuals: hardly any problem needs fewer.
_FIRST_LOOK = 3
#: Evaluations that all elements may take together before the stragglers are taken aside.
_TOGETHER = 8
#: Below this many elements, leaving the finished ones out costs more than it saves.
_SMALL = 8192


def newton(function: MonotoneFunction, target: Tensor, max_iterations: int = 200) -> Root:
    r"""Solve f(x) = target for a strictly increasing f, to working precision.

    A step goes to the nearer root of the parabola through f(x), f'(x) and f''(x),

    .. math:: x \leftarrow x - \frac{2 r}{f' + \sqrt{|f'^2 - 2 r f''|}}, \qquad r = f(x) - \text{target},

    (Laguerre's iteration of degree two: cubic convergence, and from afar it goes astray far less
    often than Newton's or Halley's). The divisor is held between the bounds of f', so that no step
    leaves the interval which the mean value theorem allows. Most elements are done after three
    evaluations; stragglers go on alone, bisecting whenever a step leaves the bracket or fails to
    halve the residual, so that they must arrive as well.
    """
    lowest, highest = function.slope_bounds
    x = function.guess(target)
    used = 0
    while True:
        value, slope, curvature = function.evaluate(x)
        gap = value - target
        used += 1
        if used >= min(_FIRST_LOOK, max_iterations):
            residual = gap.abs()
            converged = residual <= working_precision(x, target)
            left = converged.numel() - int(converged.sum())
            crowded = converged.numel() <= _SMALL or 4 * left > converged.numel()
            if left == 0 or used >= min(_TOGETHER, max_iterations) or not crowded:
                break
        x = torch.addcdiv(x, gap, _divisor(gap, slope, curvature, lowest, highest), value=-1)
    root = Root(x, slope, torch.full_like(x, used, dtype=torch.int32), residual, converged)
    if left and used < max_iterations:
        _finish(function, target, root, gap, curvature, used, max_iterations)
    return root


def _divisor(gap: Tensor, slope: Tensor, curvature: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    root = torch.addcmul(slope * slope, gap, curvature, value=-2).abs_().sqrt_()
    return torch.clamp(root.add_(slope).mul_(0.5), lowest, highest)


def _finish(
    function: MonotoneFunction,
    targets: Tensor,
    root: Root,
    gap: Tensor,
    curvature: Tensor,
    used: int,
    max_iterations: int,
) -> None:
    """Go on with the elements of ``root`` that have not converged, alone, and write them into it."""
    rows, columns = (~root.converged & root.residual.isfinite()).nonzero(as_tuple=True)
    if not rows.numel():
        return
    function = function.select(rows, columns)
    index = rows * targets.shape[-1] + columns

    def pick(whole: Tensor) -> Tensor:
        return whole.reshape(-1).index_select(0, index).unsqueeze(0)

    target, x, gap, slope, curvature = map(pick, (targets, root.x, gap, root.slope, curvature))
    residual = gap.abs()
    converged = torch.zeros_like(x, dtype=torch.bool)
    iterations = torch.full_like(x, used, dtype=torch.int32)
    lowest, highest = function.slope_bounds
    low, high = function.bracket(target)
    previous = torch.full_like(x, torch.inf)
    while used < max_iterations and not bool(converged.all()):
        above = gap > 0
        # The mean value theorem bounds the solution from both sides of x at once.
        near, far = x - gap / highest, x - gap / lowest
        low = torch.maximum(low, torch.where(above, far, near))
        high = torch.minimum(high, torch.where(above, near, far))
        step = x - gap / _divisor(gap, slope, curvature, lowest, highest)
        trusted = (step > low) & (step < high) & (residual <= previous / 2)
        previous = residual
        x = torch.where(converged, x, torch.where(trusted, step, (low + high) / 2))
        used += 1
        iterations = torch.where(converged, iterations, used)
        value, slope, curvature = function.evaluate(x)
        gap = value - target
        residual = gap.abs()
        converged = residual <= working_precision(x, target)
    for whole, part in zip(root, (x, slope, iterations, residual, converged), strict=True):
        whole[rows, columns] = part.squeeze(0)
