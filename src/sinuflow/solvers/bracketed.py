"""Newton's method inside a bracket, for increasing functions of which only value and slope are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .result import Root, working_precision

#: The bracket doubles its width this often before a solution is considered out of reach.
_DOUBLINGS = 128

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def bracketed_newton(evaluate: Evaluate, target: Tensor, h: Tensor, max_iterations: int = 200) -> Root:
    r"""Solve f(x; h) = target for functions that increase in x, elementwise.

    A bracket around the target is doubled until it contains the solution. Newton steps that leave the bracket, or that
    do not halve the residual, are replaced by bisection. An element has converged when rounding explains its residual:
    that of x, of the target, and of x to the next floating-point number, :math:`f'(x) \, |x| \, \epsilon`; or when no
    floating-point number is left inside its bracket.

    Args:
        evaluate: gives f(x; h) and f'(x; h) for a selection of n elements: x of shape (1, n) and h of shape (1, P, n).
        target: of shape (D, B).
        h: parameters of the functions, of shape (D, P, B).
        max_iterations: evaluations per element, without those that find the bracket.

    Example:
        >>> root = bracketed_newton(lambda x, h: (x.sinh(), x.cosh()), torch.tensor([[10.0]]), torch.zeros(1, 0, 1))
        >>> bool((root.x - 2.998222950297969).abs() < 1e-6), bool(root.converged)
        (True, True)
    """
    shape = target.shape
    target, h = target.reshape(1, -1), h.transpose(0, 1).reshape(1, h.shape[1], target.numel())
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
        for whole, part in zip(root, (x, slope, torch.full_like(active, used), residual, converged), strict=True):
            whole[:, active] = part.to(whole.dtype)
        left = (~converged & residual.isfinite()).squeeze(0).nonzero().squeeze(1)
        if not len(left):
            break
        newton = x - gap / slope
        accepted = (newton > low) & (newton < high) & (residual <= previous / 2)
        x, previous = torch.where(accepted, newton, low + (high - low) / 2), residual
        active = active[left]
        target, h, low, high, x, previous = (t[..., left] for t in (target, h, low, high, x, previous))
    return Root(*(t.view(shape) for t in root))


def _bracket(evaluate: Evaluate, target: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """An interval with f(low) <= target <= f(high); NaN where none is found."""
    width = 1 + target.abs()
    low, high = target - width, target + width
    for _ in range(_DOUBLINGS):
        below, above = evaluate(low, h)[0] <= target, evaluate(high, h)[0] >= target
        if bool((below & above).all()):
            break
        low, high = torch.where(below, low, low - width), torch.where(above, high, high + width)
        width = 2 * width
    valid = below & above & low.isfinite() & high.isfinite()
    return torch.where(valid, low, torch.nan), torch.where(valid, high, torch.nan)
