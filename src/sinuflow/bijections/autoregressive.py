"""Autoregressive layers: a masked network, and what its outputs do to each feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditioners import MADE
from ..errors import ArgumentError
from ..registry import register
from ..solvers import SolverOptions
from .base import Bijection, LayerInverse
from .inverse_ops import Structure, triangular_inverse
from .sinusoidal import initial_waves
from .transformers import ConditionalWaves


class AutoregressiveLayer(Bijection):
    r"""The map :math:`z_i = F(x_i; c_i(x_{<i}))`, or with ``reverse``, :math:`c_i(x_{>i})`.

    F shifts if ``scales`` is 0, and is a :class:`~sinuflow.bijections.transformers.ConditionalWaves`
    otherwise. The conditioner c is a :class:`~sinuflow.conditioners.MADE`, which takes ``options``.
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        *,
        scales: int,
        waves: int,
        reverse: bool,
        **options: Any,
    ) -> None:
        super().__init__(features, context)
        self.reverse = reverse
        structure = Structure(features, context, (), (), "relu", None, scales, waves)
        self.transformer = structure.transformer
        self.conditioner = MADE(features, self.transformer.parameters, context=context, **options)
        made = self.conditioner
        hidden = tuple(len(layer.reach) for layer in made.plan.hidden)
        self.structure = Structure(
            features, context, hidden, made.skips, made.activation, made.squash, scales, waves
        ).encode()

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.flip(0) if self.reverse else x
        z, ladj = self.transformer.forward(x, self.conditioner(x, context))
        return (z.flip(0) if self.reverse else z), ladj

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> list[LayerInverse]:
        z = z.flip(0) if self.reverse else z
        layers = [*self.conditioner.layers, self.conditioner.head]
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        answer = triangular_inverse(z, context, weights, biases, self.structure, options)
        return [answer._replace(x=answer.x.flip(0)) if self.reverse else answer]


@register
class AutoregressiveWaves(AutoregressiveLayer):
    r"""Conditional waves: every parameter of the sinusoidal transformers computed by the network.

    The paper's Eq. "integral", :math:`[h_i, d_i] = c_i(x_{<i})`, with a bounded log-scale beside:

    .. math:: z_i = \tau_n \circ \dots \circ \tau_1 (e^{s_i} x_i + d_i),
        \qquad [s_i, d_i, a_i, b_i, w_i, \alpha_i] = c_i(x_{<i}).

    The Jacobian is triangular. The layer starts as the identity. Its inverse is ordered
    substitution with a safeguarded Newton iteration for each feature.

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
        **options: Any,
    ) -> None:
        if scales < 1 or waves < 1:
            raise ArgumentError(f"scales and waves must be at least 1; got {scales} and {waves}")
        super().__init__(features, context, scales=scales, waves=waves, reverse=reverse, **options)
        assert isinstance(self.transformer, ConditionalWaves)
        frequency, phase = initial_waves(features, scales * waves)
        with torch.no_grad():
            bias = self.conditioner.head.bias.view(features, -1)
            bias[:, 2 : 2 + 2 * scales * waves] = torch.cat([frequency, phase], dim=-1)
