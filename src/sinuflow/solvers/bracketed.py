"""Newton's method inside a bracket, for increasing functions of which only value and slope are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .result import Root, working_precision

#: The bracket doubles its width this often before a solution is considered out of reach.
_DOUBLINGS = 128


def bracketed_newton(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, max_iterations: int = 200
) -> Root:
    r"""Solve f(x) = target elementwise for increasing f; ``evaluate`` gives f(x) and f'(x).

    A bracket around the target is doubled until it contains the solution. Newton steps that leave the bracket, or that
    do not halve the residual, are replaced by bisection. An element has converged when rounding explains its residual:
    that of x, of the target, and of x to the next floating-point number, :math:`f'(x) \, |x| \, \epsilon`.

    Example:
        >>> root = bracketed_newton(lambda x: (x.sinh(), x.cosh()), torch.tensor([10.0]))
        >>> bool((root.x - 2.998222950297969).abs() < 1e-6), bool(root.converged)
        (True, True)
    """
    low, high = _bracket(evaluate, target)
    x = target.clamp(low, high)
    iterations = torch.zeros_like(x, dtype=torch.int32)
    previous = torch.full_like(x, torch.inf)
    best: Root | None = None
    epsilon = torch.finfo(x.dtype).eps
    for used in range(1, max_iterations + 1):
        value, slope = evaluate(x)
        gap = value - target
        residual = gap.abs()
        converged = residual <= working_precision(x, target) + 4 * epsilon * (slope * x).abs()
        iterations = torch.where(converged, iterations, used)
        best = Root(x, slope, iterations, residual, converged)
        low, high = torch.where(gap < 0, x, low), torch.where(gap > 0, x, high)
        if bool((converged | ~residual.isfinite() | (low >= high)).all()):
            break
        newton = x - gap / slope
        accepted = (newton > low) & (newton < high) & (residual <= previous / 2)
        previous = residual
        x = torch.where(converged, x, torch.where(accepted, newton, low + (high - low) / 2))
    assert best is not None
    return best._replace(iterations=best.iterations.clamp(min=1))


def _bracket(evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor) -> tuple[Tensor, Tensor]:
    """An interval with f(low) <= target <= f(high), where one is found."""
    width = 1 + target.abs()
    low, high = target - width, target + width
    for _ in range(_DOUBLINGS):
        too_high, too_low = evaluate(low)[0] > target, evaluate(high)[0] < target
        if not bool((too_high | too_low).any()):
            break
        low, high = torch.where(too_high, low - width, low), torch.where(too_low, high + width, high)
        width = 2 * width
    finite = low.isfinite() & high.isfinite()
    return torch.where(finite, low, target), torch.where(finite, high, target)
