"""The flow's bijection as a torch Transform."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import Transform, constraints

from ..bijections import Bijection


class FlowTransform(Transform):
    r"""Data to noise, :math:`z = T^{-1}(x)`, for a fixed context; ``.inv`` is noise to data.

    Example:
        >>> import torch, sinuflow
        >>> from torch.distributions import Independent, Normal, TransformedDistribution
        >>> flow = sinuflow.SinusoidalFlow(features=2, blocks=2, hidden=(32,))
        >>> noise = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
        >>> d = TransformedDistribution(noise, [flow.transform().inv])
        >>> x = d.sample((5,))
        >>> torch.allclose(d.log_prob(x), flow().log_prob(x), atol=1e-4)
        True
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, bijection: Bijection, context: Tensor | None = None, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.bijection = bijection
        self.context = context

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, FlowTransform) and other.bijection is self.bijection
        return same and other.context is self.context

    __hash__ = object.__hash__

    def with_cache(self, cache_size: int = 1) -> FlowTransform:
        return FlowTransform(self.bijection, self.context, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.bijection.inverse(y, self.context)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z and the log-determinant in one pass; zuko calls this method."""
        z, ladj = self.bijection(x, self.context)
        return z, ladj
