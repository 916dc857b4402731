"""The inverse of a stack of sinusoidal transformers, and its implicit gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from ..solvers import Inversion, Root, SolverOptions, fixed_point, newton
from ..solvers.implicit import enter
from .scale_stack import gradients, run
from .select import wave_kernels
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
    """The certificate of two inversions in sequence, in the memory of the first."""
    return Root(
        second.x,
        first.slope.mul_(second.slope),
        torch.maximum(first.iterations, second.iterations, out=first.iterations),
        torch.maximum(first.residual, second.residual, out=first.residual),
        first.converged.logical_and_(second.converged),
    )


class _Stack:
    """The stack as a problem of :mod:`sinuflow.solvers.implicit`, whose parameters are those of its waves."""

    key: int

    def solve(
        self, z: Tensor, context: Tensor | None, parameters: Sequence[Tensor], options: SolverOptions
    ) -> Inversion:
        waves = Waves(*parameters)
        shared = options.method == "certified" and waves.frequency.shape[-1] == 1
        kernels = wave_kernels(waves.frequency.shape[-2], z, *waves, fine=True) if shared else None
        if kernels is not None:
            return Inversion(*kernels.scale_stack.inverse(z, waves, options.limit))
        with torch.inference_mode():  # makes small operations about twice as fast
            result = invert_stack(z.contiguous(), waves.to(z.dtype), options).per_row()
        return Inversion(*(t.clone() for t in result))

    def pull_back(
        self, x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor
    ) -> list[Tensor]:
        waves = Waves(*parameters)
        kernels = wave_kernels(waves.frequency.shape[-2], x, *waves) if waves.frequency.shape[-1] == 1 else None
        if kernels is None:
            trace = run(x, waves)
            pull, slope = partial(gradients, trace, waves), trace.slopes.prod(0)
        else:
            inputs = kernels.scale_stack.forward(x, waves, keep=True)[2]
            pull = partial(kernels.scale_stack.backward, inputs, waves)
            slope, _ = pull(torch.ones_like(x), torch.zeros_like(grad_ladj))
        ladj_by_x, _ = pull(torch.zeros_like(x), grad_ladj)
        grad_z = (grad_x - ladj_by_x) / slope
        _, grads = pull(-grad_z, -grad_ladj)
        return [grad_z, *grads]


STACK = _Stack()
enter(STACK)
