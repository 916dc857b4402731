"""What all conditioners have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import demand_shape
from ..registry import Component
from ..solvers import Inversion, SolverOptions, Step, substitute
from ..transformers import Transformer
from ..transformers.base import defaults_for_new_forward, vector_jacobian

#: From the gradient with respect to the chosen features of x, (n, B), to those with respect to the same features of z
#: and to their parameters, (n, B) and (n, P, B).
Local = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


class Masked(nn.Module):
    """The parameters of a masked layer: zero, or if it has a ``fan_in``, uniform within its inverse root.

    The mask is applied whenever the weight is used, so that values written into masked entries have no effect.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, fan_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(mask.shape))
        self.bias = nn.Parameter(torch.zeros(len(mask)))
        self.register_buffer("mask", mask.to(self.weight), persistent=False)
        if fan_in:
            bound = 1 / math.sqrt(fan_in)
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)
            with torch.no_grad():
                self.weight.mul_(self.mask)


class Conditioner(Component, nn.Module):
    r"""A network :math:`h_i = c_i(x_{<i}, \text{context})` that computes the parameters of a transformer.

    A subclass implements :meth:`forward`. The default :meth:`incremental` evaluates it once for each feature; a
    subclass that overrides it, without computing any hidden state twice, makes sampling about as fast as scoring. Its
    ``outputs`` are P parameters per feature, the transformer's ``num_parameters``.

    Example:
        >>> class Linear(Conditioner):
        ...     def __init__(self, features, outputs):
        ...         super().__init__(features, outputs)
        ...         self.weight = nn.Parameter(0.1 * torch.randn(outputs, features, features))
        ...     def forward(self, x, context=None):
        ...         return (self.weight.tril(-1) @ x).transpose(0, 1)
        >>> Linear(3, 2)(torch.randn(3, 5)).shape
        torch.Size([3, 2, 5])
    """

    #: Rows of a batch that are inverted at a time, few enough to stay in the processor's cache; None for all.
    rows_at_once: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A subclass with a new ``forward`` inherits no evaluation, adjoint or fused op of the other network.
        methods = ("incremental", "adjoint", "transform_with", "invert_with")
        defaults_for_new_forward(cls, Conditioner, methods)

    def __init__(self, features: int, outputs: int, context: int = 0) -> None:
        super().__init__()
        self.features, self.outputs, self.context = features, outputs, context

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """h of shape (D, P, B), for x of shape (D, B) and a context of shape (C, B)."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def incremental(self, like: Tensor, context: Tensor | None = None) -> Iterator[Step]:
        """Steps that make the parameters known feature by feature, for a batch of the shape (D, B) of ``like``.

        Each :class:`~sinuflow.solvers.Step` names features and their parameters, which may depend on the features of
        earlier steps alone. When the iterator goes on, ``step.solution`` holds these features of x. Iterate within
        :class:`torch.no_grad`, because steps may reuse buffers; gradients come from :meth:`adjoint`.
        """
        x = torch.zeros_like(like)
        for i in range(self.features):
            step = Step(slice(i, i + 1), self(x, context)[i : i + 1])
            yield step
            x[i : i + 1] = step.solution

    def adjoint(self, x: Tensor, context: Tensor | None, grad: Tensor, local: Local) -> list[Tensor]:
        r"""Gradients through the inverse at its solution x: of z, of the parameters, and of the context, if any.

        The default solves the triangular system :math:`J^T v = g` by sweeps
        :math:`v \leftarrow D^{-1} (g - N^T v)` with vector-Jacobian products of ``forward``. As N is strictly
        triangular, at most D sweeps are exact.
        """
        with torch.enable_grad():
            x, *given = (t.detach().requires_grad_() for t in (x, context) if t is not None)
            h = self(x, *given)
        through = torch.zeros_like(grad)  # the gradient that reaches x through the parameters
        for _ in range(self.features):
            grad_z, grad_h = local(slice(None), grad + through)
            (again,) = vector_jacobian([h], [x], [grad_h], retain_graph=True)
            if torch.equal(again, through):
                break
            through = again
        return [grad_z, *vector_jacobian([h], [*self.parameters(), *given], [grad_h])]

    def transform_with(
        self, transformer: Transformer, x: Tensor, context: Tensor | None, reverse: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """z, and the log-determinant or None for 0; with ``reverse``, features are in reverse order on both sides."""
        x = x.flip(0) if reverse else x
        (features, rows), h = x.shape, self(x, context)
        demand_shape(self, "forward", "parameters", h, (features, self.outputs, rows), "(features, parameters, rows)")
        z, ladj = transformer(x, h)
        demand_shape(transformer, "forward", "z", z, (features, rows), "(features, rows)")
        demand_shape(transformer, "forward", "a log-determinant", ladj, (rows,), "(rows,), a sum over features")
        return z.flip(0) if reverse else z, None if transformer.kind == "shift" else ladj

    def invert_with(
        self, transformer: Transformer, z: Tensor, context: Tensor | None, options: SolverOptions
    ) -> Inversion:
        """The certified inverse of the pair, by substitution unless the pair has an op of its own."""
        return substitute(self.incremental(z, context), transformer.inverse, z, options)
