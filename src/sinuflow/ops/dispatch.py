"""When a hand-written backward pass may stand in for the plain PyTorch reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def fused_allowed() -> bool:
    """Whether the hand-written version may be used here.

    The reference is used while compiling, because the compiler fuses it better than we could,
    under tracing, and under function transforms and forward-mode differentiation, which need plain operations.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._len_torch_dispatch_stack():  # somebody records operations, and must see them
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    return forward_ad._current_level < 0


def reference_backward(
    reference: Callable[..., Any], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The backward pass through the reference, itself differentiable: for second derivatives."""
    with torch.enable_grad():
        # Views, so that an input's own history (it may depend on another input) is left out.
        views = [t.view_as(t) for t in inputs]
        outputs = reference(*views)
    wanted = [t for t in views if t.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, gradients, create_graph=True, allow_unused=True))
    return tuple(next(found) if t.requires_grad else None for t in views)
