"""MADE: a network whose outputs for feature i depend on the features before it alone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError
from ..kernels.activations import activate, check_activation, squash
from ..kernels.degrees import Layer, plan
from ..kernels.masked_linear import masked_linear


class MaskedLinear(nn.Module):
    r"""The map :math:`(M \odot W) h + b` of column vectors, with a staircase mask M.

    The mask is applied whenever the weight is used: whatever an optimiser or a user writes into
    the masked entries has no effect.
    """

    mask: Tensor

    def __init__(self, layer: Layer, zero: bool = False) -> None:
        super().__init__()
        rows, columns = len(layer.reach), layer.columns[-1]
        self.steps = layer.steps
        reach = torch.tensor(layer.reach).unsqueeze(-1)
        self.register_buffer("mask", (torch.arange(columns) < reach).to(torch.get_default_dtype()), persistent=False)
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows))
        if not zero:
            bound = 1 / math.sqrt(max(1, columns))
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)
            with torch.no_grad():
                self.weight.mul_(self.mask)

    def forward(self, h: Tensor) -> Tensor:
        return masked_linear(h, self.weight, self.bias, self.mask, self.steps)


class MADE(nn.Module):
    r"""The masked autoregressive network of Germain et al. (2015), feature-major.

    It maps features ``(D, B)``, and a context ``(C, B)``, to ``(D, P, B)``: the P outputs for
    feature i are a function :math:`c_i(x_{<i}, \text{context})`. The context enters the first
    layer unmasked. With ``residual``, the first hidden layer is followed by residual blocks of
    two layers each instead of single layers: :math:`h + W_2 f(W_1 f(h) + b_1) + b_2`.

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
        hidden: tuple[int, ...] = (256, 256),
        context: int = 0,
        activation: str = "relu",
        residual: bool = False,
        dropout: float = 0.0,
        squash_width: float | None = None,
    ) -> None:
        super().__init__()
        if residual and len(set(hidden)) > 1:
            raise ArgumentError(f"residual=True needs hidden layers of one size; got hidden={hidden}")
        widths = hidden[:1] + tuple(w for w in hidden[1:] for _ in range(2)) if residual else hidden
        self.plan = plan(features, context, outputs, widths)
        self.residual = residual
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
        stream: Tensor | None = None  # what the residual blocks add to
        for layer, skip in zip(self.layers, self.skips, strict=True):
            before = layer(h) + stream if skip else layer(h)
            kept = self.residual and (skip or stream is None)
            stream = before if kept else stream
            h = F.dropout(activate(self.activation, before, inplace=not kept), self.dropout, self.training)
        out: Tensor = self.head(h)
        return out.view(self.plan.features, self.plan.outputs, -1)
