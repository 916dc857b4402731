"""All parameters of a flow in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of a module as views of one flat tensor.

    The module works as usual: an in-place change of either changes both. :meth:`release` undoes it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.names, self.parameters = map(list, zip(*module.named_parameters(), strict=True))
        self._shapes = [parameter.shape for parameter in self.parameters]
        self.values = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        for parameter, view in zip(self.parameters, self.views(self.values), strict=True):
            parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor in the shapes of the parameters."""
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def release(self) -> None:
        """Give every parameter its own memory."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
