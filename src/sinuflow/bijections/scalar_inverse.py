"""Inverting a stack of sinusoidal transformers, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.waves import WaveFunction, Waves
from ..solvers import Root, SolverOptions, fixed_point, newton


def invert_stack(z: Tensor, waves: Waves, options: SolverOptions) -> Root:
    """Invert ``scale_stack``: iterations and residual are the largest of any transformer."""
    rtol, atol = options.tolerances(z.dtype)
    roots: list[Root] = []
    for function in reversed(WaveFunction.stack(waves, z)):
        if options.method == "certified":
            root = newton(function, z, options.limit)
        else:
            root = fixed_point(function, z, rtol=rtol, atol=atol, max_iterations=options.limit)
        z = root.x
        roots.append(root)
    _, slope, iterations, residual, converged = (torch.stack(parts) for parts in zip(*roots, strict=True))
    return Root(z, slope.prod(0), iterations.amax(0), residual.amax(0), converged.all(0))
