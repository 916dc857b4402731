"""Gradients of ops: one autograd function for those with fused kernels, and gradients through a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def needs_gradients(*tensors: Tensor) -> bool:
    """Whether a result computed from these tensors will have gradients."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def fused(
    reference: Callable[..., Any],
    forward: Callable[..., tuple[Tensor, ...]],
    backward: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
    outputs: int = 2,
) -> tuple[Tensor, ...]:
    """The first ``outputs`` results of ``forward(*inputs)``, with gradients.

    ``backward`` takes the inputs, the gradients of the outputs, and the other results. Second derivatives are those of
    the reference.
    """
    if not needs_gradients(*inputs):
        return forward(*inputs)[:outputs]
    results: tuple[Tensor, ...] = _Fused.apply(reference, forward, backward, outputs, *inputs)
    return results


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reference: Any, forward: Any, backward: Any, outputs: int, *inputs: Tensor) -> Any:
        results = forward(*inputs)
        ctx.reference, ctx.backward_kernel, ctx.count = reference, backward, len(inputs)
        ctx.save_for_backward(*inputs, *results[outputs:])
        return results[:outputs]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, others = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():
            grads = reference_backward(ctx.reference, inputs, gradients)
        else:
            grads = ctx.backward_kernel(*inputs, *gradients, *others)
        return None, None, None, None, *grads


def reference_gradients(
    reference: Callable[..., Any], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of all inputs through the reference."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in inputs]
        outputs = reference(*leaves)
    return torch.autograd.grad(outputs, leaves, gradients, materialize_grads=True)


def reference_backward(
    reference: Callable[..., Any], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The backward pass through the reference, itself differentiable."""
    with torch.enable_grad():
        # Views exclude an input's own history, which may depend on another input.
        views = [t.view_as(t) for t in inputs]
        outputs = reference(*views)
    differentiable = [t for t in views if t.requires_grad]
    grads = iter(torch.autograd.grad(outputs, differentiable, gradients, create_graph=True, allow_unused=True))
    return tuple(next(grads) if t.requires_grad else None for t in views)
