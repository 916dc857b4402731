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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, List, Protocol  # noqa: UP035

import torch
from torch import Tensor

from ..errors import SinuflowError
from .options import SolverOptions
from .result import Inversion

Fields = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Problem(Protocol):
    """A map to invert, with parameters that may need gradients."""

    key: int
    #: Whether the problem is a module that holds its parameters.
    stateful: bool

    def solve(
        self, z: Tensor, context: Tensor | None, parameters: Sequence[Tensor] | None, options: SolverOptions
    ) -> Inversion:
        """The inverse for a feature-major batch (D, B), without gradients; by the module's parameters if None."""

    def pull_back(
        self, x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor
    ) -> list[Tensor]:
        """Gradients with respect to z, the parameters, and the context if there is one."""


_PROBLEMS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_KEYS = itertools.count()


def enter(problem: Problem) -> None:
    """Give the problem a key, by which the operator finds it; it stays known as long as it lives."""
    problem.key = next(_KEYS)
    _PROBLEMS[problem.key] = problem


def implicit_inverse(
    problem: Problem,
    z: Tensor,
    context: Tensor | None,
    parameters: Iterable[Tensor],
    options: SolverOptions,
) -> Inversion:
    """Solve the problem, with gradients for z, the context and the parameters."""
    if torch.compiler.is_compiling():
        rest = (options.method, *options.tolerances(z.dtype), options.limit)
        return Inversion(*inverse_op(z, context, list(parameters), problem.key, *rest))
    if not torch.is_grad_enabled():  # then parameters, which a module iterates over slowly, are not collected
        return problem.solve(z, context, None if problem.stateful else list(parameters), options)
    return Inversion(*_Implicit.apply(problem, options, z, context, *parameters))


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, problem: Problem, options: SolverOptions, z: Tensor, context: Tensor | None, *parameters: Tensor
    ) -> Fields:
        result = problem.solve(z, context, None if problem.stateful else parameters, options)
        ctx.problem = problem
        _save(ctx, result, context, parameters)
        ctx.mark_non_differentiable(*result[2:])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, context, parameters = _saved(ctx)
        with torch.no_grad():
            z, of_parameters, of_context = _split(
                ctx.problem.pull_back(x, context, parameters, grads[0].contiguous(), grads[1].contiguous()), context
            )
        results = (None, None, z, of_context, *of_parameters)
        if not torch.is_grad_enabled():
            return results
        # Otherwise second derivatives would silently be zero.
        anchors = (*ctx.saved_tensors, *grads[:2])
        return tuple(g if g is None else _FirstOrder.apply(g, *anchors) for g in results)


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


def _save(ctx: Any, result: Sequence[Tensor], context: Tensor | None, parameters: Sequence[Tensor]) -> None:
    ctx.conditional = context is not None
    ctx.save_for_backward(result[0], *parameters, *([] if context is None else [context]))


def _saved(ctx: Any) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    x, *rest = ctx.saved_tensors
    return (x, rest[-1], rest[:-1]) if ctx.conditional else (x, None, rest)


def _split(grads: list[Tensor], context: Tensor | None) -> tuple[Tensor, list[Tensor], Tensor | None]:
    z, *rest = grads
    return (z, rest, None) if context is None else (z, rest[:-1], rest[-1])


# ---------------------------------------------------------------- the operators of compiled graphs


def _in_a_thread(like: Tensor, function: Callable[[], Any]) -> Any:
    """Call the function in another thread: an operator switches autograd off in its own, which solvers may need."""

    def call() -> Any:
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            return function()

    stream = torch.cuda.current_stream(like.device) if like.is_cuda else None
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result()


def _inverse(
    z: Tensor,
    context: Tensor | None,
    parameters: Sequence[Tensor],
    key: int,
    method: str,
    rtol: float,
    atol: float,
    limit: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = SolverOptions(method, rtol, atol, limit)  # type: ignore[arg-type]
    result = _in_a_thread(z, lambda: _PROBLEMS[key].solve(z, context, parameters, options))
    return tuple(t.clone() for t in result)  # outputs must not share memory


inverse_op = torch.library.custom_op("sinuflow::inverse", _inverse, mutates_args=())


@inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Fields:
    row = z.new_empty(z.shape[-1])
    flags = torch.empty_like(row, dtype=torch.bool)
    return z.new_empty(z.shape), row, torch.empty_like(row, dtype=torch.int32), torch.empty_like(row), flags


def _inverse_backward(
    x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor, key: int
) -> List[Tensor]:  # noqa: UP006 - PyTorch before 2.7 infers no schema from list[Tensor]
    def pull_back() -> list[Tensor]:
        with torch.no_grad():
            return _PROBLEMS[key].pull_back(x, context, parameters, grad_x, grad_ladj)  # type: ignore[no-any-return]

    return [g.clone() for g in _in_a_thread(x, pull_back)]


inverse_backward_op = torch.library.custom_op("sinuflow::inverse_backward", _inverse_backward, mutates_args=())


@inverse_backward_op.register_fake
def _(x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], *_: Any) -> list[Tensor]:
    like = [x, *parameters, *([] if context is None else [context])]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in like]


def _op_context(ctx: Any, inputs: tuple[Any, ...], output: Fields) -> None:
    _, context, parameters, ctx.key, *_ = inputs
    _save(ctx, output, context, parameters)


def _op_gradient(ctx: Any, grad_x: Tensor, grad_ladj: Tensor, *_: Any) -> tuple[Any, ...]:
    x, context, parameters = _saved(ctx)
    grads = inverse_backward_op(x, context, parameters, grad_x.contiguous(), grad_ladj.contiguous(), ctx.key)
    z, of_parameters, of_context = _split(grads, context)
    return z, of_context, of_parameters, None, None, None, None, None


inverse_op.register_autograd(_op_gradient, setup_context=_op_context)
