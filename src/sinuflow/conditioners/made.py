"""MADE: a masked network whose outputs for feature i depend on the features before it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ..checks import check_residual, choice
from ..ops.activations import ACTIVATIONS
from ..ops.degrees import Layer, plan, staircase_mask
from ..ops.masked_mlp import MaskedNetwork, masked_network
from ..ops.masked_mlp_inverse import incremental, ordered_adjoint, substitute_shift
from ..registry import register
from ..solvers import Inversion, SolverOptions, Step
from ..transformers import Transformer
from .base import Conditioner, Local, Masked


class MaskedLinear(Masked):
    r"""The parameters of :math:`(M \odot W) h + b`, with a staircase mask M."""

    def __init__(self, layer: Layer, zero: bool = False) -> None:
        columns = layer.columns[-1]
        super().__init__(staircase_mask(layer.reach, columns), 0 if zero else max(1, columns))


@register
class MADE(Conditioner):
    r"""The masked autoregressive network of Germain et al. (2015), feature-major.

    It maps features ``(D, B)``, and a context ``(C, B)``, to ``(D, P, B)``: the P outputs for feature i are a function
    :math:`c_i(x_{<i}, \text{context})`. The context enters the first layer unmasked. With ``residual``, the first
    hidden layer is followed by residual blocks of two layers each instead of single layers: :math:`h + W_2 f(W_1 f(h) +
    b_1) + b_2`. Dropout acts on the outputs of the hidden layers; in residual blocks, between their two layers.

    The head starts at zero, so that every network starts as the constant ``head.bias``.

    Example:
        >>> made = MADE(features=3, outputs=2, hidden=(16, 16))
        >>> made(torch.randn(3, 5)).shape
        torch.Size([3, 2, 5])
    """

    rows_at_once = 2048

    def __init__(
        self,
        features: int,
        outputs: int = 1,
        hidden: Sequence[int] = (256, 256),
        context: int = 0,
        activation: str = "relu",
        residual: bool = False,
        dropout: float = 0.0,
        squash_width: float | None = None,
    ) -> None:
        super().__init__(features, outputs, context)
        hidden = tuple(hidden)
        check_residual(residual, hidden)
        widths = hidden[:1] + tuple(w for w in hidden[1:] for _ in range(2)) if residual else hidden
        self.plan = plan(features, context, outputs, widths)
        self.skips = tuple(residual and i >= 2 and i % 2 == 0 for i in range(len(widths)))
        self.activation = choice("activation", activation, ACTIVATIONS)
        self.dropout = dropout
        self.squash = squash_width
        self.layers = nn.ModuleList(MaskedLinear(layer) for layer in self.plan.hidden)
        self.head = MaskedLinear(self.plan.head, zero=True)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        network = self._network()
        out = masked_network(network, network.first_input(x, context), [t.mask for t in (*self.layers, self.head)])
        return out.view(self.plan.features, self.plan.outputs, out.shape[-1])

    def incremental(self, like: Tensor, context: Tensor | None = None) -> Iterator[Step]:
        return incremental(self._network(), like, context)

    def adjoint(self, x: Tensor, context: Tensor | None, grad: Tensor, local: Local) -> list[Tensor]:
        layers = [*self.layers, self.head]
        if any(name not in layer._parameters for layer in layers for name in ("weight", "bias")):
            return super().adjoint(x, context, grad, local)  # parametrized: weights are computed from other tensors
        z, of_context, weights, biases = ordered_adjoint(self._network(masked=True), x, context, grad, local)
        of_weights = [g.mul_(layer.mask) for g, layer in zip(weights, layers, strict=True)]
        of_parameters = [g for pair in zip(of_weights, biases, strict=True) for g in pair]
        return [z, *of_parameters, *([] if of_context is None else [of_context])]

    def invert_with(
        self, transformer: Transformer, z: Tensor, context: Tensor | None, options: SolverOptions
    ) -> Inversion:
        if transformer.kind != "shift":
            return super().invert_with(transformer, z, context, options)
        x = substitute_shift(self._network(), z, context)
        return Inversion.exact(x, z.new_zeros(z.shape[-1]))

    def _network(self, masked: bool = False) -> MaskedNetwork:
        """The network; what is masked may have any weights, or with ``masked``, zeros."""
        layers = [*self.layers, self.head]
        weights = [torch.where(layer.mask > 0, layer.weight, 0.0) if masked else layer.weight for layer in layers]
        biases = [layer.bias for layer in layers]
        dropout = self.dropout if self.training else 0.0
        return MaskedNetwork(self.plan, weights, biases, self.skips, self.activation, self.squash, dropout)
