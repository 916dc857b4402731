"""MixedFlow: a density of discrete and continuous features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..bijections.base import all_finite
from ..checks import instance
from ..errors import ArgumentError
from ..registry import register
from .categorical import CategoricalMADE
from .distribution import FlowDistribution
from .flow import Flow


@register
class MixedFlow(Flow):
    r"""The density :math:`p(k, x \mid \text{context}) = p(k \mid \text{context}) \, p(x \mid k, \text{context})`.

    k are discrete features with a categorical autoregressive density, and x continuous ones with a flow that is
    conditional on the context and the one-hot k. Rows have k first, as codes 0, 1, ...

    Args:
        categories: the density of k.
        flow: the density of x, whose context is that of ``categories`` and then ``categories.width`` one-hot inputs.

    Example:
        >>> from sinuflow import SinusoidalFlow
        >>> categories = CategoricalMADE([3], hidden=(16,))
        >>> mixed = MixedFlow(categories, SinusoidalFlow(features=2, context=3, blocks=2, hidden=(16,)))
        >>> mixed().log_prob(torch.tensor([[2.0, 0.1, -0.3]])).shape
        torch.Size([1])
        >>> mixed().sample((5,)).shape
        torch.Size([5, 3])
    """

    def __init__(self, categories: CategoricalMADE, flow: Flow) -> None:
        instance("categories", categories, CategoricalMADE)
        instance("flow", flow, Flow)
        if flow.context != categories.context + categories.width:
            raise ArgumentError(
                f"the flow has a context of {flow.context}, but the categories have {categories.context} and "
                f"{categories.width} one-hot inputs"
            )
        super().__init__(flow.bijection, flow.base)
        self.categories = categories
        self.discrete = len(categories.sizes)
        #: The number of continuous features.
        self.continuous = flow.features
        self.features, self.context = self.discrete + flow.features, categories.context
        self._flow_config = flow.config

    @property
    def parts(self) -> tuple[tuple[nn.Module, ...], ...]:
        """Modules whose parameters belong to the terms of :meth:`MixedDistribution.log_probs`."""
        return (self.categories,), (self.bijection, self.base)

    @property
    def normal_chain(self) -> None:
        """None: fused kernels of whole flows do not know the discrete part."""

    @property
    def flow_config(self) -> dict[str, Any]:
        """The configuration of the flow of the continuous features."""
        return self._flow_config

    def forward(  # type: ignore[override]
        self, context: Tensor | None = None, validate_args: bool | None = None
    ) -> MixedDistribution:
        return MixedDistribution(self, context, validate_args)

    def inner_context(self, codes: Tensor, context: Tensor | None) -> Tensor:
        """The context of the continuous features: that of the flow, and the one-hot codes."""
        hot = self.categories.one_hot(codes).mT
        return hot if context is None else torch.cat([context, hot], dim=1)

    def given_codes(self, codes: Tensor, context: Tensor | None, validate_args: bool | None = None) -> FlowDistribution:
        """The density of the continuous features for each row of codes."""
        inner = self.inner_context(codes, context)
        return FlowDistribution(self.bijection, self.base, inner, validate_args=validate_args)

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        codes, rest = x[:, : self.discrete].long(), x[:, self.discrete :]
        self.categories.set_frequencies(codes)
        rows, inner, _ = self.bijection.feature_major(rest, self.inner_context(codes, context), "x")
        with torch.no_grad():
            self.bijection.initialize(rows, inner)
        self.check_parameters()

    def check_parameters(self) -> None:
        super().check_parameters()
        for name, parameter in self.categories.named_parameters():
            if not all_finite(parameter):
                raise ArgumentError(f"the parameter {name!r} of the categories is NaN or infinite")


class MixedDistribution(Distribution):
    """The density of rows (codes, continuous features), for a context of one row or one for each row."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(self, flow: MixedFlow, context: Tensor | None, validate_args: bool | None = None) -> None:
        self._flow, self._context = flow, context
        self._validate = validate_args
        super().__init__(torch.Size(), torch.Size([flow.features]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.log_probs(value).sum(-1)

    def log_probs(self, value: Tensor) -> Tensor:
        """The terms log p(k | context) and log p(x | k, context) of rows (..., features), as (..., 2)."""
        rows = value.reshape(-1, self._flow.features)
        codes, rest = rows[:, : self._flow.discrete].long(), rows[:, self._flow.discrete :]
        context = self._rows(len(rows))
        continuous = self._flow.given_codes(codes, context, self._validate).log_prob(rest)
        terms = torch.stack([self._flow.categories.log_prob(codes, context), continuous], dim=-1)
        return terms.view(*value.shape[:-1], 2)

    @torch.no_grad()
    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        count = torch.Size(sample_shape).numel()
        context = self._rows(count)
        codes = self._flow.categories.sample(count, context, generator)
        rest = self._flow.given_codes(codes, context).sample(generator=generator)
        return torch.cat([codes.to(rest), rest], dim=1).view(*sample_shape, self._flow.features)

    def _rows(self, count: int) -> Tensor | None:
        """The context of each of so many rows."""
        return None if self._context is None else self._context.expand(count, self._flow.context)
