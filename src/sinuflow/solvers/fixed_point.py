"""Algorithm 1 of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from .result import MonotoneFunction, Root


def fixed_point(function: MonotoneFunction, target: Tensor, *, rtol: float, atol: float, max_iterations: int) -> Root:
    r"""Solve f(x) = target by :math:`x_{j+1} = z - (f(x_j) - x_j)`, from :math:`x_0 = z`.

    It converges whenever :math:`f - \mathrm{id}` is a contraction, at the rate of its Lipschitz
    constant, and stops when :math:`|x_{j+1} - x_j| \le \text{atol} + \text{rtol}\,|x_j|`. The
    difference of two iterates is the residual :math:`z - f(x_j)`, so the test is a certificate for
    the :math:`x_j` that the algorithm returns.
    """
    x = target.clone()
    iterations = torch.zeros_like(x, dtype=torch.int32)
    converged = torch.zeros_like(x, dtype=torch.bool)
    for used in range(1, max_iterations + 1):
        value, slope, _ = function.evaluate(x)
        residual = (value - target).abs()
        iterations += ~converged  # it was evaluated because it had not converged before
        converged = residual.isfinite() & (residual <= atol + rtol * x.abs())
        if used == max_iterations or bool(converged.all()):
            break
        x = torch.where(converged, x, target - (value - x))
    return Root(x, slope.clone(), iterations, residual, converged)
