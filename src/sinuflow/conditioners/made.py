"""MADE: a network whose outputs for feature i depend on the features before it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..flow_config import check_residual
from ..ops.activations import check_activation, squash
from ..ops.degrees import Layer, plan
from ..ops.masked_mlp import Network, masked_network
from ..ops.staircase import staircase_mask

#: Rows of a mask that are made at a time.
_ROWS = 256


class MaskedLinear(nn.Module):
    r"""The numbers of a map :math:`(M \odot W) h + b` of column vectors, with a staircase mask M.

    The mask is applied whenever the weight is used: whatever number an optimiser or a user writes
    into the masked entries has no effect.
    """

    mask: Tensor

    def __init__(self, layer: Layer, zero: bool = False) -> None:
        super().__init__()
        rows, columns = len(layer.reach), layer.columns[-1]
        self.register_buffer("mask", _mask(layer.reach, columns), persistent=False)
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows))
        if not zero:
            bound = 1 / math.sqrt(max(1, columns))
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)
            with torch.no_grad():
                self.weight.mul_(self.mask)


def _mask(reach: Sequence[int], columns: int) -> Tensor:
    mask = torch.empty((len(reach), columns))
    for start in range(0, len(reach), _ROWS):  # without a second mask of the same size beside it
        mask[start : start + _ROWS] = staircase_mask(reach[start : start + _ROWS], columns)
    return mask


class MADE(nn.Module):
    r"""The masked autoregressive network of Germain et al. (2015), feature-major.

    It maps features ``(D, B)``, and a context ``(C, B)``, to ``(D, P, B)``: the P outputs for
    feature i are a function :math:`c_i(x_{<i}, \text{context})`. The context enters the first
    layer unmasked. With ``residual``, the first hidden layer is followed by residual blocks of
    two layers each instead of single layers: :math:`h + W_2 f(W_1 f(h) + b_1) + b_2`. Dropout acts on what the
    hidden layers put out; in residual blocks, on what is between their two layers.

    The head starts at zero, so that every conditioner starts as the constant ``head.bias``.

    Example:
        >>> made = MADE(features=3, outputs=2, hidden=(16, 16))
        >>> made(torch.randn(3, 5)).shape
        torch.Size([3, 2, 5])
    """

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
        super().__init__()
        hidden = tuple(hidden)
        check_residual(residual, hidden)
        widths = hidden[:1] + tuple(w for w in hidden[1:] for _ in range(2)) if residual else hidden
        self.plan = plan(features, context, outputs, widths)
        self.skips = tuple(residual and i >= 2 and i % 2 == 0 for i in range(len(widths)))
        self.activation = check_activation(activation)
        self.dropout = dropout
        self.squash = squash_width
        self.layers = nn.ModuleList(MaskedLinear(layer) for layer in self.plan.hidden)
        self.head = MaskedLinear(self.plan.head, zero=True)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = squash(x, self.squash)
        if context is not None:
            h = torch.cat([context, h])
        layers = [*self.layers, self.head]
        network = Network(self.plan, self.skips, self.activation, self.dropout if self.training else 0.0)
        out = masked_network(
            network,
            h,
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            [layer.mask for layer in layers],
        )
        return out.view(self.plan.features, self.plan.outputs, out.shape[-1])
