"""Second derivatives of fused ops, by differentiating their reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


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
