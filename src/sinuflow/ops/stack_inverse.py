"""Inverting a stack of sinusoidal transformers, one after the other."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from ..solvers import Root, SolverOptions, fixed_point, newton
from .waves import WaveFunction, Waves


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
    return reduce(_and_then, roots)


def _and_then(first: Root, second: Root) -> Root:
    """The certificate of one inversion after the other; the first one's memory is used again."""
    return Root(
        second.x,
        first.slope.mul_(second.slope),
        torch.maximum(first.iterations, second.iterations, out=first.iterations),
        torch.maximum(first.residual, second.residual, out=first.residual),
        first.converged.logical_and_(second.converged),
    )
