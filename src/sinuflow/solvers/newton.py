"""Local parabolas, safeguarded by bisection inside a proven bracket."""

from __future__ import annotations

import torch
from torch import Tensor

from .result import MonotoneFunction, Root, working_precision

#: Evaluations before the first look at the residuals: by then most elements have arrived.
_FIRST_LOOK = {torch.float32: 3, torch.float64: 4}
#: Evaluations before elements that still have not arrived are safeguarded.
_PATIENCE = 12
#: Up to this many elements, leaving the finished ones out costs more than it saves.
_SMALL = 4096
#: With this many elements that stay together, one of them nearly always needs one evaluation more.
_MANY = 512
#: A step within which waves of any reasonable frequency do not turn.
_SHORT = 2e-4


def newton(function: MonotoneFunction, target: Tensor, max_iterations: int = 200) -> Root:
    r"""Solve f(x) = target for a strictly increasing f, to working precision.

    A step goes to the nearer root of the parabola through f(x), f'(x) and f''(x),

    .. math:: x \leftarrow x - \frac{2 r}{f' + \sqrt{|f'^2 - 2 r f''|}}, \qquad r = f(x) - \text{target},

    (Laguerre's iteration of degree two: cubic convergence, and from afar it goes astray far less
    often than Newton's or Halley's). The divisor is held between the bounds of f', so that no step
    leaves the interval which the mean value theorem allows. Most elements are done after three
    evaluations, and when few are left they go on alone. What has not arrived after a dozen is
    safeguarded: it bisects a proven bracket whenever a step leaves it or fails to halve the
    residual, so that it must arrive as well. What has arrived takes a last step, by the evaluation that
    said so: in a chain of such functions a residual grows.
    """
    return _sprint(function, target, function.guess(target), 0, max_iterations)


def _sprint(function: MonotoneFunction, target: Tensor, x: Tensor, used: int, max_iterations: int) -> Root:
    first_look = _FIRST_LOOK[x.dtype] + (x.numel() >= _MANY)
    look = min(used + 1 if used else first_look, max_iterations)
    lowest, highest = 2 * function.lowest_slope, 2 * function.highest_slope
    divisor = torch.empty_like(x)
    while True:
        value, slope, curvature = function.evaluate(x)
        gap = value.sub_(target)
        used += 1
        if used >= look:
            residual = gap.abs()
            converged = residual <= working_precision(x, target)
            left = converged.numel() - int(converged.sum())
            alone = converged.numel() > _SMALL and 4 * left < converged.numel()
            if left == 0 or alone or used >= min(_PATIENCE, max_iterations):
                break
        divisor = _twice_divisor(gap, slope, curvature, lowest, highest, divisor)
        x.addcdiv_(gap, divisor, value=-2)
    root = Root(
        *_last_step(converged, x, gap, slope, curvature),
        torch.full_like(x, used, dtype=torch.int32),
        residual,
        converged,
    )
    if left and used < max_iterations:
        pick = _Pick(converged)
        chosen = function.select(pick.rows, pick.columns)
        target, x = pick(target), pick(x)
        if used < _PATIENCE:
            gap, slope, curvature = pick(gap), pick(slope), pick(curvature)
            lowest, highest = 2 * chosen.lowest_slope, 2 * chosen.highest_slope
            x = torch.addcdiv(x, gap, _twice_divisor(gap, slope, curvature, lowest, highest), value=-2)
            part = _sprint(chosen, target, x, used, max_iterations)
        else:
            part = _safeguarded(chosen, target, x, used, max_iterations)
        root = Root(*(pick.put(whole, some) for whole, some in zip(root, part, strict=True)))
    return root


class _Pick:
    """Takes the elements that have not converged out of a tensor, as (1, count)."""

    def __init__(self, converged: Tensor) -> None:
        self._index = (~converged).flatten().nonzero().squeeze(1)
        self.rows = self._index // converged.shape[-1]
        self.columns = self._index % converged.shape[-1]

    def __call__(self, whole: Tensor) -> Tensor:
        return whole.reshape(-1).index_select(0, self._index).unsqueeze(0)

    def put(self, whole: Tensor, some: Tensor) -> Tensor:
        """The tensor with those elements replaced; it may be overwritten."""
        return whole.reshape(-1).index_copy_(0, self._index, some.squeeze(0)).view(whole.shape)


def _twice_divisor(
    gap: Tensor, slope: Tensor, curvature: Tensor, lowest: Tensor, highest: Tensor, out: Tensor | None = None
) -> Tensor:
    root = torch.mul(slope, slope, out=out).addcmul_(gap, curvature, value=-2).abs_().sqrt_()
    return root.add_(slope).clamp_(lowest, highest)


def _last_step(converged: Tensor, x: Tensor, gap: Tensor, slope: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """What has converged, better still, and the slope there; but where the function bends within rounding, x stays."""
    step = gap / slope
    straight = ((step * curvature).abs_() <= 0.01 * slope) & (step.abs() <= _SHORT)
    after = torch.where(converged & straight, x - step, x)
    return after, torch.addcmul(slope, curvature, after - x)


def _safeguarded(function: MonotoneFunction, target: Tensor, x: Tensor, used: int, max_iterations: int) -> Root:
    """The same steps inside a bracket that every evaluation narrows."""
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
