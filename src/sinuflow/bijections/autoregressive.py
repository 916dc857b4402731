"""Autoregressive bijections: a transformer whose parameters a conditioner computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..checks import instance
from ..conditioners import MADE, Conditioner
from ..errors import ArgumentError, SinuflowError
from ..registry import register
from ..solvers import Inversion, SolverOptions, parallel_sweeps
from ..solvers.implicit import implicit_inverse, register_problem
from ..transformers import ConditionalWaves, Transformer
from ..transformers.base import vector_jacobian
from .base import Bijection
from .batch_splitting import concatenated
from .sinusoidal import initial_waves

Order = Literal["forward", "reverse"] | Sequence[int]


def _shallow_copy(module: nn.Module, tensors: Mapping[Tensor, Tensor]) -> Any:
    """A module in evaluation mode with other tensors as parameters; submodules that need no change are shared."""
    if isinstance(module, torch.jit.ScriptModule) or "forward" in module.__dict__:  # bound to its own parameters
        if all(tensors[p] is p for p in module.parameters()):
            return module
        raise SinuflowError(
            f"gradients through an inverse cannot replace the parameters of a {type(module).__name__}, which hooks and "
            "functional_call require: compile the whole flow instead, or remove the hooks"
        )
    parameters = {name: p if p is None else tensors[p] for name, p in module._parameters.items()}
    modules = {name: m if m is None else _shallow_copy(m, tensors) for name, m in module._modules.items()}
    same = all(parameters[name] is p for name, p in module._parameters.items())
    if same and not module.training and all(modules[name] is m for name, m in module._modules.items()):
        return module
    copy = module.__new__(type(module))
    copy.__dict__.update(module.__dict__, training=False, _parameters=parameters, _modules=modules)
    return copy


@register
class Autoregressive(Bijection):
    r"""The map :math:`z_i = \tau(x_i; c_i(x_{<i}, \text{context}))` with a transformer τ and a conditioner c.

    The Jacobian is triangular. The inverse is ordered substitution over the conditioner's steps, at about the cost of
    one forward pass if the conditioner is incremental; its gradients are implicit.

    Args:
        transformer: the scalar map.
        conditioner: computes the transformer's parameters.
        order: of the features in the conditioner: ``"forward"``, ``"reverse"``, or a permutation, whose i-th entry is
            the i-th feature.

    Example:
        >>> from sinuflow.transformers import Affine
        >>> layer = Autoregressive(Affine(), MADE(features=3, outputs=2, hidden=(16,)), order=[2, 0, 1])
        >>> x = torch.randn(7, 3)
        >>> z, ladj = layer(x)
        >>> torch.allclose(layer.inverse(z)[0], x, atol=1e-5)
        True
    """

    key: int
    transformer: Transformer
    conditioner: Conditioner
    permutation: Tensor | None

    def __init__(self, transformer: Transformer, conditioner: Conditioner, order: Order = "forward") -> None:
        instance("transformer", transformer, Transformer)
        instance("conditioner", conditioner, Conditioner)
        super().__init__(conditioner.features, conditioner.context)
        needed = getattr(transformer, "num_parameters", None)
        if needed is None:
            raise ArgumentError(f"{type(transformer).__name__} must set num_parameters, how many it has per feature")
        if conditioner.outputs != needed:
            raise ArgumentError(
                f"the conditioner has outputs={conditioner.outputs}, but {type(transformer).__name__} needs "
                f"{needed} parameters per feature"
            )
        self.transformer = transformer
        self.conditioner = conditioner
        self.reverse = order == "reverse"
        permutation = None
        if not isinstance(order, str):
            permutation = torch.tensor(list(order), dtype=torch.long)
            if sorted(permutation.tolist()) != list(range(self.features)):
                raise ArgumentError(f"order must be a permutation of the {self.features} features; got {order!r}")
        elif order not in ("forward", "reverse"):
            raise ArgumentError(f"order must be 'forward', 'reverse' or a permutation; got {order!r}")
        self.register_buffer("permutation", permutation, persistent=False)
        register_problem(self)

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.permutation is None:
            return self.conditioner.transform_with(self.transformer, x, context, self.reverse)
        z, ladj = self.conditioner.transform_with(self.transformer, self._ordered(x), context)
        return self._back(z), ladj

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        z, given = self._ordered(z), () if context is None else (context,)
        solve = partial(self._solve, z, context, options)
        result = implicit_inverse(self, z, lambda: [*self.parameters(), *given], options, solve)
        return result._replace(x=self._back(result.x))

    def solve(self, z: Tensor, inputs: Sequence[Tensor], options: SolverOptions) -> Inversion:
        """The inverse of a feature-major batch in the conditioner's order, by these parameters and context."""
        layer, context = self._with(inputs)
        return layer._solve(z, context, options)

    def pull_back(self, x: Tensor, inputs: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor) -> list[Tensor]:
        r"""Gradients through :meth:`solve` with respect to z and the inputs.

        By the implicit function theorem, from :math:`\tau(x; h) = z` and the log-determinant
        :math:`-\sum_i \log \tau'(x_i; h_i)`.
        """
        layer, context = self._with(inputs, differentiable=True)
        context = None if context is None else context.detach()
        return layer._pull_back(x.detach(), context, grad_x, grad_ladj)  # the graph of x leads back to here

    def _with(self, inputs: Sequence[Tensor], differentiable: bool = False) -> tuple[Autoregressive, Tensor | None]:
        """The layer with these parameters, in the order of ``parameters()``, and the context.

        Dropout is off, as it was in the inverse. This layer itself does not change, because other threads may use it.
        """
        parameters, context = (inputs[:-1], inputs[-1]) if self.context else (inputs, None)
        tensors: dict[Tensor, Tensor] = {}
        for own, t in zip(self.parameters(), parameters, strict=True):
            # A hook of the layer's own parameter would run here and once more in the graph outside.
            usable = t.is_set_to(own) and own.requires_grad and not own._backward_hooks
            tensors[own] = own if usable else t.detach().requires_grad_(differentiable)
        return _shallow_copy(self, tensors), context

    def _solve(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        rows = z.shape[-1]
        size = self.conditioner.rows_at_once or max(1, rows)
        parts = []
        for start in range(0, max(1, rows), size):
            here = slice(start, start + size)
            part = None if context is None else context[:, here]
            parts.append(self._solve_part(z[:, here].contiguous(), part, options))
        return parts[0] if len(parts) == 1 else concatenated(parts)

    def _solve_part(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        if options.method == "certified":
            return self.conditioner.invert_with(self.transformer, z, context, options)

        def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.conditioner(x, None if context is None else context[:, rows])
            return *self.transformer(x, h), h

        return parallel_sweeps(evaluate, self.transformer.inverse, z, options)

    def _pull_back(self, x: Tensor, context: Tensor | None, grad_x: Tensor, grad_ladj: Tensor) -> list[Tensor]:
        h = self.conditioner(x, context)
        slope, z_by_h = self.transformer.gradients(x, h, torch.ones_like(x), torch.zeros_like(grad_ladj))
        ladj_by_x, ladj_by_h = self.transformer.gradients(x, h, torch.zeros_like(x), grad_ladj)

        def local(features: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            grad_z = (grad - ladj_by_x[features]) / slope[features]
            return grad_z, -torch.addcmul(ladj_by_h[features], grad_z.unsqueeze(-2), z_by_h[features])

        grad_z, *grads = self.conditioner.adjoint(x, context, grad_x, local)
        own = list(self.transformer.parameters())
        if own:
            with torch.enable_grad():
                outputs = self.transformer(x, h)
            grads = [*vector_jacobian(outputs, own, (-grad_z, -grad_ladj)), *grads]
        owners = [*own, *self.conditioner.parameters()]  # a parameter of both has the sum of two gradients
        sums: dict[Tensor, Tensor] = {}
        for p, g in zip(owners, grads[: len(owners)], strict=True):
            sums[p] = sums[p] + g if p in sums else g
        return [grad_z, *(sums[p] for p in self.parameters()), *grads[len(owners) :]]

    def _ordered(self, x: Tensor) -> Tensor:
        """The features in the conditioner's order."""
        return x[self.permutation] if self.permutation is not None else x.flip(0) if self.reverse else x

    def _back(self, x: Tensor) -> Tensor:
        """The features in their own order."""
        return self._ordered(x) if self.permutation is None else torch.empty_like(x).index_copy(0, self.permutation, x)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        register_problem(self)  # a copy is another problem


@register
class AutoregressiveWaves(Autoregressive):
    r"""Conditional waves: every parameter of the sinusoidal transformers computed by a masked network.

    The paper's Eq. "integral", :math:`[h_i, d_i] = c_i(x_{<i})`, with a bounded log-scale:

    .. math:: z_i = \tau_n \circ \dots \circ \tau_1 (e^{s_i} x_i + d_i),
        \qquad [s_i, d_i, a_i, b_i, w_i, \alpha_i] = c_i(x_{<i}).

    It starts as the identity. Arguments from ``hidden`` on are those of :class:`~sinuflow.conditioners.MADE`.

    Example:
        >>> layer = AutoregressiveWaves(features=3, hidden=(32, 32))
        >>> z, ladj = layer(torch.randn(7, 3))
        >>> x, _ = layer.inverse(z)
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        *,
        scales: int = 2,
        waves: int = 4,
        reverse: bool = False,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        residual: bool = False,
        dropout: float = 0.0,
        squash_width: float | None = None,
    ) -> None:
        transformer = ConditionalWaves(scales, waves)
        outputs = transformer.num_parameters
        conditioner = MADE(features, outputs, hidden, context, activation, residual, dropout, squash_width)
        super().__init__(transformer, conditioner, "reverse" if reverse else "forward")
        frequency, phase = initial_waves(features, scales * waves)
        with torch.no_grad():
            bias = conditioner.head.bias.view(features, -1)
            bias[:, 2 : 2 + 2 * scales * waves] = torch.cat([frequency, phase], dim=-1)
