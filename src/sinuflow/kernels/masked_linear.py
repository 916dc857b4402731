r"""A linear map whose matrix is block lower triangular, :math:`(M \odot W) h + b`.

Rows and columns are sorted by degree, so what the mask M removes is a staircase in the upper
right: nearly half of the matrix, and of the work, which the blocked version leaves out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .dispatch import fused_allowed, reference_backward


class Step(NamedTuple):
    """Rows ``start:stop`` of the matrix are zero from column ``columns`` on."""

    start: int
    stop: int
    columns: int


def staircase(row_reach: list[int], steps: int = 8, least: int = 32) -> tuple[Step, ...]:
    """Group rows, of which row r sees the first ``row_reach[r]`` columns, into a few blocks.

    ``row_reach`` must not decrease. More blocks skip more of the matrix, but small products are slow.
    """
    size = max(least, -(-len(row_reach) // steps))
    starts = range(0, len(row_reach), size)
    return tuple(Step(i, min(i + size, len(row_reach)), row_reach[min(i + size, len(row_reach)) - 1]) for i in starts)


def masked_linear(h: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, steps: tuple[Step, ...]) -> Tensor:
    """The map applied to the columns of ``h`` of shape (inputs, B)."""
    if h.device.type != "cpu" or len(steps) < 2 or not fused_allowed():
        return reference(h, weight, bias, mask)
    result: Tensor = _Blocked.apply(h, weight, bias, mask, steps)
    return result


def reference(h: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The definition, in plain PyTorch."""
    return torch.addmm(bias.unsqueeze(-1), weight * mask, h)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, steps: tuple[Step, ...]
    ) -> Tensor:
        masked = weight * mask
        out = h.new_empty((weight.shape[0], h.shape[-1]))
        column = bias.unsqueeze(-1)
        for start, stop, columns in steps:
            torch.addmm(column[start:stop], masked[start:stop, :columns], h[:columns], out=out[start:stop])
        ctx.save_for_backward(h, weight, bias, mask)
        ctx.steps = steps
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, bias, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*reference_backward(reference, (h, weight, bias, mask), (grad,)), None)
        grad_h = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            masked = weight * mask
            grad_h = torch.empty_like(h)
            before = 0
            for start, _, columns in ctx.steps:  # these columns are seen by the rows from start on
                if columns > before:
                    torch.mm(masked[start:, before:columns].mT, grad[start:], out=grad_h[before:columns])
                before = max(before, columns)
            grad_h[before:].zero_()
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight)
            for start, stop, columns in ctx.steps:
                torch.mm(grad[start:stop], h[:columns].mT, out=grad_weight[start:stop, :columns])
            grad_weight.mul_(mask)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum(-1)
        return grad_h, grad_weight, grad_bias, None, None
