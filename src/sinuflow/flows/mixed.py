"""MixedFlow: a density of discrete and continuous features."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from ..bijections.base import all_finite, check_vectors
from ..checks import instance
from ..errors import ArgumentError
from ..registry import register
from .categorical import CategoricalMADE
from .distribution import FlowDistribution, context_batch_shape
from .flow import Flow


@register
class MixedFlow(Flow):
    r"""The density :math:`p(k, x \mid \text{context}) = p(k \mid \text{context}) \, p(x \mid k, \text{context})`.

    k are discrete features with a categorical autoregressive density, and x are continuous features with a flow that is
    conditional on the context and the one-hot k. In a row, the codes k = 0, 1, ... come first.

    Args:
        categories: the density of k.
        flow: the density of x. Its context consists of that of ``categories`` and ``categories.width`` one-hot inputs.

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
        if isinstance(flow, MixedFlow):
            raise ArgumentError("flow must be of continuous features alone; got a MixedFlow")
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
        """The modules of each term of :meth:`MixedDistribution.log_probs`, which have separate parameters."""
        return (self.categories,), (self.bijection, self.base)

    @property
    def normal_chain(self) -> None:
        """None, because the fused kernels of whole flows do not support the discrete part."""

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

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The codes and the continuous features of rows (n, features)."""
        return rows[:, : self.discrete].long(), rows[:, self.discrete :]

    def check_codes(self, rows: Tensor) -> None:
        """Raise an :class:`~sinuflow.ArgumentError` if rows (n, features) have invalid codes."""
        codes = rows[:, : self.discrete]
        valid = ((codes >= 0) & (codes < codes.new_tensor(self.categories.sizes)) & (codes == codes.floor())).all(1)
        if not bool(valid.all()):
            raise ArgumentError(
                f"the codes of {int((~valid).sum())} of {len(valid)} rows are not whole numbers from 0 to the size of "
                "their feature less one"
            )

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        self.check_codes(x)
        codes, continuous = self.split(x)
        super().initialize(continuous, self.inner_context(codes, context))
        self.categories.set_frequencies(codes)

    def check_parameters(self) -> None:
        super().check_parameters()
        for name, parameter in self.categories.named_parameters():
            if not all_finite(parameter):
                raise ArgumentError(f"the parameter {name!r} of the categories is NaN or infinite")


class MixedDistribution(Distribution):
    """The density of rows, which are codes and then continuous features, given a context.

    The batch shape is that of the context without its last dimension. With ``validate_args``, on by default, invalid
    codes and non-finite values are errors.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(self, flow: MixedFlow, context: Tensor | None = None, validate_args: bool | None = None) -> None:
        batch_shape = context_batch_shape(context, flow.context)
        self.context, self._flow = context, flow
        self._validating = True if validate_args is None else validate_args
        super().__init__(batch_shape, Size([flow.features]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of ``value`` of shape (..., features)."""
        return self.log_probs(value).sum(-1)

    def log_probs(self, value: Tensor) -> Tensor:
        """The terms log p(k | context) and log p(x | k, context), of shape (..., 2)."""
        check_vectors(value, self._flow.features, "value")
        try:
            shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        except RuntimeError:
            raise ArgumentError(
                f"value of shape {tuple(value.shape)} does not broadcast with the batch shape {tuple(self.batch_shape)}"
            ) from None
        rows, context = _rows(value, shape), self._context_rows(shape)
        if self._validating:
            self._flow.check_codes(rows)
        codes, continuous = self._flow.split(rows)
        log_density = self._flow.given_codes(codes, context, self._validating).log_prob(continuous)
        terms = torch.stack([self._flow.categories.log_prob(codes, context), log_density], dim=-1)
        return terms.view(*shape, 2)

    @torch.no_grad()
    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw rows of shape (*sample_shape, *batch shape, features); inverses are certified layer by layer."""
        shape = Size([*([sample_shape] if isinstance(sample_shape, int) else sample_shape), *self.batch_shape])
        context = self._context_rows(shape)
        codes = self._flow.categories.sample(shape.numel(), context, generator)
        continuous = self._flow.given_codes(codes, context).sample(generator=generator)
        return torch.cat([codes.to(continuous), continuous], dim=1).view(*shape, self._flow.features)

    def _context_rows(self, shape: Size) -> Tensor | None:
        """The context of each row of a batch of this shape, (n, context)."""
        return None if self.context is None else _rows(self.context, shape)


def _rows(x: Tensor, shape: Size) -> Tensor:
    """Broadcast vectors (..., n) to a batch shape, and flatten them to the rows of a matrix."""
    return x.expand(*shape, x.shape[-1]).reshape(-1, x.shape[-1])
