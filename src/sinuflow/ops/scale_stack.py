r"""A stack of sinusoidal transformers, :math:`\tau_n \circ \dots \circ \tau_1`, feature by feature.

``waves`` holds all of them, stacked along a leading axis of length n.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from ..solvers import Inversion, Root, SolverOptions, fixed_point, newton
from ..solvers.implicit import register_problem
from .autograd import fused, needs_gradients, reference_gradients
from .select import wave_kernels
from .waves import WaveFunction, Waves, transform


def scale_stack(x: Tensor, waves: Waves) -> tuple[Tensor, Tensor]:
    """The stack applied to ``x`` of shape (D, B), and its log-determinant of shape (B,).

    Without gradients, x may be float64 and the waves float32.
    """
    learn = needs_gradients(x, *waves)
    kernels = wave_kernels(x, *waves, mixed=not learn)
    if kernels is None:
        return reference(x, *waves.to(x.dtype))
    forward, backward = kernels.scale_stack.forward, kernels.scale_stack.backward
    z, ladj = fused(reference, partial(forward, keep=learn), backward, x, *waves)
    return z, ladj


def reference(x: Tensor, frequency: Tensor, cosine: Tensor, sine: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The definition in PyTorch."""
    ladj = torch.zeros_like(x[0])
    for wave in zip(frequency, cosine, sine, shift, strict=True):
        x, log_slope = transform(x, Waves(*wave))
        ladj = ladj + log_slope.sum(0)
    return x, ladj


def inverse(z: Tensor, waves: Waves, options: SolverOptions) -> Inversion:
    """The inverse for z of shape (D, B), with one certificate per row, and without gradients.

    z may be float64 and the waves float32.
    """
    kernels = wave_kernels(z, *waves, mixed=True) if options.method == "certified" else None
    if kernels is not None:
        return Inversion(*kernels.scale_stack.inverse(z, *waves, options.limit))
    with torch.inference_mode():  # makes small operations about twice as fast
        result = invert_stack(z.contiguous(), waves.to(z.dtype), options).per_row()
    return Inversion(*(t.clone() for t in result))


def invert_stack(z: Tensor, waves: Waves, options: SolverOptions) -> Root:
    """The reference of :func:`inverse`, elementwise: iterations and residual are the largest of any transformer."""
    rtol, atol = options.tolerances(z.dtype)
    roots: list[Root] = []
    for function in reversed(WaveFunction.stack(waves)):
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


class _Inverse:
    """The inverse as a problem of :mod:`sinuflow.solvers.implicit`, whose inputs are the waves."""

    key: int

    def solve(self, z: Tensor, inputs: Sequence[Tensor], options: SolverOptions) -> Inversion:
        return inverse(z, Waves(*inputs), options)

    def pull_back(self, x: Tensor, inputs: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor) -> list[Tensor]:
        def gradients(grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, ...]:
            if kernels is None:
                return reference_gradients(reference, (x, *inputs), (grad_z, grad_ladj))
            return kernels.scale_stack.backward(x, *inputs, grad_z, grad_ladj)  # type: ignore[no-any-return]

        kernels = wave_kernels(x, *inputs)
        slope = gradients(torch.ones_like(x), torch.zeros_like(grad_ladj))[0]
        ladj_by_x = gradients(torch.zeros_like(x), grad_ladj)[0]
        grad_z = (grad_x - ladj_by_x) / slope
        return [grad_z, *gradients(-grad_z, -grad_ladj)[1:]]


STACK = _Inverse()
register_problem(STACK)
