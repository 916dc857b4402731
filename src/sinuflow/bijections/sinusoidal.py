"""D of the paper: sinusoidal transformers of each feature, whose parameters do not depend on x."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..ops.constrain import constrain
from ..ops.scale_stack import STACK, scale_stack
from ..ops.waves import Waves
from ..registry import register
from ..solvers import Inversion, SolverOptions
from ..solvers.implicit import implicit_inverse
from .base import Bijection


def initial_waves(*shape: int) -> tuple[Tensor, Tensor]:
    """Initial unconstrained frequencies and phases: periods from 1 to 60, phases over the whole circle."""
    return torch.empty(shape).uniform_(-3, 3), torch.empty(shape).uniform_(-3, 3)


@register
class SinusoidalLayer(Bijection):
    r"""The paper's :math:`D_l^{-1}`: a chain of sinusoidal transformers in every feature.

    Each of the ``scales`` transformers is (Eq. "residual_fun")

    .. math::
        \tau(x) = x + \alpha \sum_{k=1}^{K} \frac{w_k}{2 a_k}
        \left[ \sin 2 b_k - \sin(2 a_k x + 2 b_k) \right] + d,
        \qquad
        \tau'(x) = 1 - \alpha \sum_k w_k \cos(2 a_k x + 2 b_k)

    with K ``waves``, a > 0, w on the simplex and :math:`|\alpha| < 1`, all independent of x, so that
    :math:`\tau - \mathrm{id}` is a contraction (Prop. 1) and the Jacobian is diagonal. It starts as the
    identity, :math:`\alpha = d = 0`. The paper leaves α off the constant term; d absorbs the difference.

    With a ``context``, a small network adds its outputs for the context to the unconstrained parameters of every
    transformer. The contraction holds, because the context is not x.

    Example:
        >>> layer = SinusoidalLayer(features=3)
        >>> z, ladj = layer(torch.randn(7, 3))
        >>> x, _ = layer.inverse(z)
    """

    def __init__(
        self, features: int, scales: int = 4, waves: int = 4, context: int = 0, hidden: tuple[int, ...] = (64,)
    ) -> None:
        super().__init__(features, context)
        if scales < 1 or waves < 1:
            raise ArgumentError(f"scales and waves must be at least 1; got {scales} and {waves}")
        self.scales, self.waves = scales, waves
        self.frequency, self.phase = map(nn.Parameter, initial_waves(scales, features, waves))
        self.weight = nn.Parameter(torch.zeros(scales, features, waves))
        self.strength = nn.Parameter(torch.zeros(scales, features))
        self.shift = nn.Parameter(torch.zeros(scales, features))
        if context:
            widths = (context, *hidden)
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise(widths):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            head = nn.Linear(widths[-1], scales * features * (3 * waves + 2))
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            self.network = nn.Sequential(*layers, head)

    def constrained(self, context: Tensor | None) -> Waves:
        """The waves, stacked along a leading axis of scales; their last axis is 1 without a context."""
        parameters = (self.frequency, self.phase, self.weight, self.strength, self.shift)
        free = [t.unsqueeze(-1) for t in parameters]
        if context is not None:
            sizes = [t.numel() for t in free]
            parts = self.network(context.mT).mT.split(sizes)
            free = [t + part.view(*t.shape[:-1], -1) for t, part in zip(free, parts, strict=True)]
        return constrain(*free)

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        return scale_stack(x, self.constrained(context))

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        waves = self.constrained(context)
        return implicit_inverse(STACK, z, lambda: waves, options, partial(STACK.solve, z, waves, options))
