"""All parameters of a flow in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of a module as views of one flat tensor.

    The module works as usual: an in-place change of either changes both. :meth:`release` undoes it.
    """

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._shapes = [parameter.shape for parameter in self.parameters]
        self.size = sum(parameter.numel() for parameter in self.parameters)
        first = self.parameters[0]
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self.views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor in the shapes of the parameters."""
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def release(self) -> None:
        """Give every parameter its own memory."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
