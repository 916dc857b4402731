"""What all transformers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import demand_shape
from ..registry import Component
from ..solvers import Root, SolverOptions, bracketed_newton

#: What a wrong shape means in the inverse, which evaluates the map at some elements alone.
_ELEMENTWISE = "elementwise: what depends on the feature belongs in the parameters h"


class Transformer(Component, nn.Module):
    r"""A monotone scalar map :math:`z_i = \tau(x_i; h_i)` of each feature, with P parameters per feature.

    A subclass sets :attr:`num_parameters` and implements :meth:`forward`. It may override :meth:`inverse`, by default a
    safeguarded Newton iteration on ``forward``, and :meth:`gradients`, by default automatic differentiation.

    Example:
        >>> from sinuflow.bijections import Autoregressive
        >>> from sinuflow.conditioners import MADE
        >>> class Cubic(Transformer):
        ...     num_parameters = 1
        ...     def forward(self, x, h):
        ...         strength = torch.nn.functional.softplus(h[:, 0])
        ...         return x + strength * x**3, (1 + 3 * strength * x**2).log().sum(0)
        >>> layer = Autoregressive(Cubic(), MADE(features=3, outputs=1, hidden=(16,)))
        >>> x = torch.randn(5, 3)
        >>> z, ladj = layer(x)
        >>> torch.allclose(layer.inverse(z)[0], x, atol=1e-4)
        True
    """

    #: P, the number of parameters per feature.
    num_parameters: int
    #: The map's name to ops that are fused with a conditioner; None if there are none. A subclass that overrides
    #: ``forward`` inherits neither it nor the inverse and gradients of the other map.
    kind: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        defaults_for_new_forward(cls, Transformer, ("kind", "inverse", "gradients"))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """z of shape (D, B) and the log-determinant of shape (B,), for x of shape (D, B) and h of shape (D, P, B).

        It is elementwise: :meth:`inverse` calls it for any n elements, with x of shape (1, n) and h of shape (1, P, n).
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def inverse(self, z: Tensor, h: Tensor, options: SolverOptions) -> Root:
        """x with its certificate, and the slope of ``forward`` there."""

        def evaluate(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            with torch.inference_mode(False), torch.enable_grad():
                x = x.clone().requires_grad_()
                value, _ = self(x, h.clone())
                demand_shape(self, "forward", "z", value, x.shape, _ELEMENTWISE)
                (slope,) = torch.autograd.grad(value.sum(), x)
            return value.detach(), slope

        return bracketed_newton(evaluate, z, h, options.limit)

    def gradients(self, x: Tensor, h: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        """Vector-Jacobian products of ``forward`` with respect to x and h."""
        with torch.enable_grad():
            x, h = x.detach().requires_grad_(), h.detach().requires_grad_()
            outputs = self(x, h)
        of_x, of_h = vector_jacobian(outputs, (x, h), (grad_z, grad_ladj))
        return of_x, of_h


def defaults_for_new_forward(cls: Any, base: Any, names: Sequence[str]) -> None:
    """Reset attributes that a class inherits, and that belong to another ``forward``, to those of ``base``."""
    for name in names:
        owner = next(each for each in cls.__mro__ if name in vars(each))
        if issubclass(owner, base) and owner is not base and owner.forward is not cls.forward:
            setattr(cls, name, vars(base)[name])


def vector_jacobian(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor], retain_graph: bool = False
) -> list[Tensor]:
    """Gradients of the inputs; zero for those on which no output depends."""
    pairs = [(t, g) for t, g in zip(outputs, gradients, strict=True) if t.requires_grad]  # others are constants
    if not (pairs and inputs):
        return [torch.zeros_like(t) for t in inputs]
    dependent, cotangents = zip(*pairs, strict=True)
    return list(
        torch.autograd.grad(dependent, inputs, cotangents, retain_graph, allow_unused=True, materialize_grads=True)
    )
