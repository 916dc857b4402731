"""Inverting a stack of sinusoidal transformers, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.waves import WaveFunction, Waves
from ..solvers import Root, SolverOptions, fixed_point, newton


def invert_stack(z: Tensor, waves: Waves, options: SolverOptions) -> Root:
    """Invert ``scale_stack``: iterations and residual are the largest of any transformer."""
    rtol, atol = options.tolerances(z.dtype)
    total: Root | None = None
    for function in reversed(WaveFunction.stack(waves, z)):
        if options.method == "certified":
            root = newton(function, z, options.limit)
        else:
            root = fixed_point(function, z, rtol=rtol, atol=atol, max_iterations=options.limit)
        z = root.x
        total = root if total is None else _worst(total, root)
    assert total is not None
    return total


def _worst(later: Root, earlier: Root) -> Root:
    return Root(
        earlier.x,
        later.slope * earlier.slope,
        torch.maximum(later.iterations, earlier.iterations),
        torch.maximum(later.residual, earlier.residual),
        later.converged & earlier.converged,
    )
