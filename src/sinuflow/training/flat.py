"""All parameters of a flow in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of a module as views of one flat tensor.

    The module works as before. Whatever is written to the tensor, or to a parameter in place, is written to
    both. :meth:`release` gives every parameter memory of its own again.
    """

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._shapes = [parameter.shape for parameter in self._parameters]
        self.size = sum(parameter.numel() for parameter in self._parameters)
        first = self._parameters[0]
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self._parameters, self.views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters themselves."""
        return self._parameters

    def views(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor of the same length, parameter by parameter."""
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def release(self) -> None:
        """Give every parameter memory of its own."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
