r"""Inverses as opaque operators with implicit gradients.

An inverse iterates until it has converged, which a compiler cannot trace. As an operator it is one opaque node, so that
``torch.compile(fullgraph=True)`` works through it. Gradients come from the implicit function theorem rather than from
an unrolled loop: from :math:`F(x; \theta) = z`, a gradient g with respect to x is :math:`J^{-T} g` with respect to z,
and :math:`-(\partial F / \partial \theta)^T J^{-T} g` with respect to θ.

Eager code uses an autograd function, because the first call of a custom operator imports the compiler, two seconds.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, List, Protocol  # noqa: UP035

import torch
from torch import Tensor

from ..errors import SinuflowError
from .options import SolverOptions
from .result import Inversion

Fields = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Inputs = Callable[[], Sequence[Tensor]]


class Problem(Protocol):
    """A bijection to invert, with inputs that may need gradients: its parameters, and the context if there is one.

    ``solve`` inverts a feature-major batch (D, B) without gradients. ``pull_back`` returns the gradients of z and of
    the inputs.
    """

    key: int

    def solve(self, z: Tensor, inputs: Sequence[Tensor], options: SolverOptions) -> Inversion: ...
    def pull_back(self, x: Tensor, inputs: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor) -> list[Tensor]: ...


_PROBLEMS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_KEYS = itertools.count()


def register_problem(problem: Problem) -> None:
    """Register a problem under a new key, by which the operator finds it; the reference is weak."""
    problem.key = next(_KEYS)
    _PROBLEMS[problem.key] = problem


def implicit_inverse(
    problem: Problem, z: Tensor, inputs: Inputs, options: SolverOptions, solve: Callable[[], Inversion]
) -> Inversion:
    """The problem's inverse, with gradients for z and the inputs; ``solve`` computes it with the current inputs."""
    if torch.compiler.is_compiling():
        arguments = (options.method, *options.tolerances(z.dtype), options.limit)
        return Inversion(*inverse_op(z, list(inputs()), problem.key, *arguments))
    if not torch.is_grad_enabled():  # the inputs are not needed, and slow to collect from a module
        return solve()
    return Inversion(*_Implicit.apply(problem, solve, z, *inputs()))


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, solve: Callable[[], Inversion], z: Tensor, *inputs: Tensor) -> Fields:
        result = solve()
        ctx.problem = problem
        ctx.save_for_backward(result.x, *inputs)
        ctx.mark_non_differentiable(*result[2:])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, *inputs = ctx.saved_tensors
        with torch.no_grad():
            results = ctx.problem.pull_back(x, inputs, grads[0].contiguous(), grads[1].contiguous())
        if torch.is_grad_enabled():  # otherwise second derivatives would silently be zero
            results = [_FirstOrder.apply(g, x, *inputs, *grads[:2]) for g in results]
        return None, None, *results


class _FirstOrder(torch.autograd.Function):
    """The identity, whose own derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise SinuflowError(
            "second derivatives through an inverse are not available: differentiate log_prob or the forward "
            "map instead, which have them"
        )


def _in_a_thread(like: Tensor, function: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
    """Call the function in another thread, because operators disable autograd, which solvers may need.

    The results are contiguous, as the fake kernels declare, and share no memory, as operators require.
    """

    def call() -> list[Tensor]:
        with torch.no_grad(), torch.cuda.stream(stream) if stream is not None else nullcontext():
            return [t.clone(memory_format=torch.contiguous_format) for t in function()]

    stream = torch.cuda.current_stream(like.device) if like.is_cuda else None
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result()


@torch.library.custom_op("sinuflow::inverse", mutates_args=())
def inverse_op(
    z: Tensor, inputs: Sequence[Tensor], key: int, method: str, rtol: float, atol: float, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inverse by the problem with this key."""
    options = SolverOptions(method, rtol, atol, limit)  # type: ignore[arg-type]
    return tuple(_in_a_thread(z, lambda: _PROBLEMS[key].solve(z, inputs, options)))  # type: ignore[return-value]


@inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Fields:
    row = z.new_empty(z.shape[-1])
    flags = torch.empty_like(row, dtype=torch.bool)
    return z.new_empty(z.shape), row, torch.empty_like(row, dtype=torch.int32), torch.empty_like(row), flags


@torch.library.custom_op("sinuflow::inverse_backward", mutates_args=())
def inverse_backward_op(
    x: Tensor, inputs: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor, key: int
) -> List[Tensor]:  # noqa: UP006 - PyTorch before 2.7 infers no schema from list[Tensor]
    """The gradients of the inverse by the problem with this key."""
    return _in_a_thread(x, lambda: _PROBLEMS[key].pull_back(x, inputs, grad_x, grad_ladj))


@inverse_backward_op.register_fake
def _(x: Tensor, inputs: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *inputs)]


def _set_context(ctx: Any, inputs: tuple[Any, ...], output: Fields) -> None:
    _, tensors, ctx.key, *_ = inputs
    ctx.save_for_backward(output[0], *tensors)


def _gradients(ctx: Any, grad_x: Tensor, grad_ladj: Tensor, *_: Any) -> tuple[Any, ...]:
    x, *inputs = ctx.saved_tensors
    grad_z, *grad_inputs = inverse_backward_op(x, inputs, grad_x.contiguous(), grad_ladj.contiguous(), ctx.key)
    return grad_z, grad_inputs, None, None, None, None, None


inverse_op.register_autograd(_gradients, setup_context=_set_context)
