"""Flows of the library zuko, trained and scored like ours."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from ..errors import ArgumentError

ZukoName = Literal["MAF", "NSF"]


class ZukoFlow(nn.Module):
    """One of zuko's flows with what :func:`sinuflow.fit` asks a flow for.

    Args:
        name: "MAF", masked affine autoregressive, or "NSF", rational-quadratic splines.
        features: columns.
        context: columns of the context.
        transforms: layers.
        hidden: widths of the hidden layers of each.

    Example:
        >>> import torch
        >>> flow = ZukoFlow("MAF", features=3, hidden=(16,))
        >>> flow().log_prob(torch.zeros(2, 3)).shape
        torch.Size([2])
    """

    #: Nothing that fused kernels could know.
    bijection = None

    def __init__(
        self, name: ZukoName, features: int, context: int = 0, transforms: int = 5, hidden: tuple[int, ...] = (256, 256)
    ) -> None:
        super().__init__()
        try:
            from zuko import flows
        except ImportError as error:
            raise ArgumentError("other flows need zuko: pip install 'sinuflow[peers]'") from error
        self.features, self.context = features, context
        self.config = {
            "peer": name,
            "features": features,
            "context": context,
            "transforms": transforms,
            "hidden": list(hidden),
        }
        kind: Any = getattr(flows, name)
        self.flow = kind(features, context, transforms=transforms, hidden_features=hidden)

    def forward(self, context: Tensor | None = None, validate_args: bool | None = None) -> Any:
        """The distribution."""
        return self.flow(context)

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        """Nothing here depends on data."""
