"""Parallel sweeps: Jacobi iteration for a triangular map, all features at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .result import Root


def parallel_sweeps(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    solve: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    z: Tensor,
    *,
    rtol: float,
    atol: float,
    max_iterations: int,
) -> Root:
    r"""Solve :math:`z_i = F(x_i; c_i(x_{<i}))` for x of shape (D, B), starting from x = z.

    One sweep computes the parameters :math:`c(x)` from the current x and solves for every
    :math:`x_i` with them, so sweep j makes at least the first j features exact: after D sweeps all
    are, whatever the network. A row stops as soon as its residual is within
    :math:`\text{atol} + \text{rtol}\,|x|` (for a shift this is Algorithm 1 of the paper); only
    the others are swept again.

    ``evaluate(x, rows)`` gives :math:`F(x; c(x))` and :math:`c(x)` for the chosen rows of the batch,
    ``solve(z, parameters)`` inverts F and says for which rows it could. The answer's ``slope`` is left
    at zero.
    """
    features, count = z.shape
    x = z.clone()
    rows = torch.arange(count, device=z.device)
    solved = torch.ones(count, dtype=torch.bool, device=z.device)
    residual = torch.full_like(z, torch.inf)
    converged = torch.zeros_like(z, dtype=torch.bool)
    iterations = torch.zeros_like(z, dtype=torch.int32)
    for used in range(1, max_iterations + 1):
        here = x[:, rows]
        value, parameters = evaluate(here, rows)
        gap = (value - z[:, rows]).abs()
        # Beyond D sweeps nothing changes any more: what is left is rounding, if F was inverted each time.
        final = solved[rows] & (used > features)
        near = (gap.isfinite() & ((gap <= atol + rtol * here.abs()) | final)).all(0)
        residual[:, rows], converged[:, rows], iterations[:, rows] = gap, near.expand_as(gap), used
        if used == max_iterations or bool(near.all()):
            break
        rows, parameters = rows[~near], parameters[..., ~near]
        x[:, rows], done = solve(z[:, rows], parameters)
        solved[rows] &= done
    return Root(x, torch.zeros_like(x), iterations, residual, converged)
