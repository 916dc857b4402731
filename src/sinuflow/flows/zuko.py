"""Flows of the library zuko with the interface that :func:`sinuflow.fit` needs."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from ..errors import ArgumentError


class ZukoFlow(nn.Module):
    """A flow of zuko.

    ``name`` is "MAF" for masked affine autoregressive layers, or "NSF" for rational-quadratic splines, ``transforms``
    the number of layers, and ``hidden`` has the hidden widths of each layer's network.

    Example:
        >>> import torch
        >>> flow = ZukoFlow("MAF", features=3, hidden=(16,))
        >>> flow().log_prob(torch.zeros(2, 3)).shape
        torch.Size([2])
    """

    #: Fused kernels do not apply.
    bijection = None

    def __init__(
        self,
        name: Literal["MAF", "NSF"],
        features: int,
        context: int = 0,
        transforms: int = 5,
        hidden: tuple[int, ...] = (256, 256),
    ) -> None:
        super().__init__()
        try:
            from zuko import flows
        except ImportError as error:
            raise ArgumentError("other flows need zuko: pip install 'sinuflow[peers]'") from error
        self.features, self.context = features, context
        sizes = {"features": features, "context": context, "transforms": transforms, "hidden": list(hidden)}
        self.config = {"peer": name, **sizes}
        self.flow: Any = getattr(flows, name)(features, context, transforms=transforms, hidden_features=hidden)

    def forward(self, context: Tensor | None = None, validate_args: bool | None = None) -> Any:
        """Return the distribution."""
        return self.flow(context)

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        """Do nothing: no parameter depends on data."""
