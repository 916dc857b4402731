"""The flow as a torch Distribution, and its bijection as a torch Transform."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Transform, constraints

from ..bijections import Bijection, Chain
from ..bijections.base import check_vectors
from ..checks import demand_shape
from ..errors import ArgumentError, InversionError
from .bases import Base, StandardNormal
from .inversion import Certify, certified_inverse

#: The default sample shape, for a single draw.
_ONE = Size()


class FlowDistribution(Distribution):
    r"""The density :math:`\log p(x) = \log p_{\text{base}}(T^{-1}(x)) + \log |\det J_{T^{-1}}(x)|`.

    The batch shape is that of the context without its last dimension. With ``validate_args``, on by default, non-finite
    values are errors; without, the log-densities of their rows are NaN.

    Example:
        >>> import sinuflow
        >>> d = sinuflow.SinusoidalFlow(features=3, context=2, blocks=2, hidden=(32,))(torch.zeros(4, 2))
        >>> d.batch_shape, d.event_shape, d.sample((5,)).shape
        (torch.Size([4]), torch.Size([3]), torch.Size([5, 4, 3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.independent(constraints.real, 1)
    has_rsample = True

    def __init__(
        self, bijection: Bijection, base: Base, context: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        # Not PyTorch's global default, which some libraries set to False at import.
        validate_args = True if validate_args is None else validate_args
        self.bijection, self.base = bijection, base
        batch_shape = context_batch_shape(context, bijection.context)
        self.context = context
        super().__init__(batch_shape, Size([bijection.features]), validate_args=validate_args)
        if context is not None and self._validating:
            _refuse_non_finite(context, "context")

    @property
    def _validating(self) -> bool:
        return bool(self._validate_args) and not torch.compiler.is_compiling()  # checks of values would break the graph

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:
        new: FlowDistribution = self._get_checked_instance(FlowDistribution, _instance)
        new.bijection, new.base = self.bijection, self.base
        new.context = None if self.context is None else self.context.expand(*batch_shape, self.context.shape[-1])
        super(FlowDistribution, new).__init__(Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of ``value`` of shape (..., features), in nats."""
        rows, context, shape = self.bijection.feature_major(value, self.context, "value")
        if self._validating:
            _refuse_non_finite(value, "value")
        if isinstance(self.bijection, Chain) and type(self.base) is StandardNormal:
            log_density = self.bijection.log_density(rows, context).reshape(shape)
        else:
            z, ladj = self.bijection(value, self.context)
            log_density = self._log_prob_of_noise(z) + ladj
        if self.batch_shape in ((), shape):  # the first call of broadcast_shapes takes half a second
            return log_density
        try:
            return log_density.expand(torch.broadcast_shapes(shape, self.batch_shape))
        except RuntimeError:
            raise ArgumentError(
                f"value of shape {tuple(value.shape)} does not broadcast with the batch shape {tuple(self.batch_shape)}"
            ) from None

    def _log_prob_of_noise(self, z: Tensor) -> Tensor:
        log_density = self.base.log_prob(z)
        demand_shape(self.base, "log_prob", "a log-density", log_density, z.shape[:-1], "a sum over features")
        return log_density

    def sample(
        self,
        sample_shape: Any = _ONE,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        *,
        certify: Certify = "layers",
    ) -> Tensor:
        """Draw without gradients.

        Guarantee: with ``certify="layers"``, each layer of the flow was inverted to working precision for every sample;
        with ``"end-to-end"``, every sample maps back to its noise through the whole flow, within the tolerance
        of :meth:`Flow.invert <sinuflow.Flow.invert>`; or an :class:`~sinuflow.InversionError` is raised. Draws are
        always finite: noise that overflows or cannot be inverted also raises that error.

        Args:
            sample_shape: the shape of the draws, in front of the batch shape.
            generator: the random number generator of the noise; by default, PyTorch's global one.
            temperature: the factor of the base's draws; below 1, samples concentrate in regions of high density.
            certify: ``"end-to-end"`` costs one forward pass, and changes no sample. The layers' certificates do not
                bound the rounding error that accumulates over an ill-conditioned flow; ``flow.double()`` reduces it.
        """
        with torch.no_grad():
            return self.rsample(sample_shape, generator, temperature, certify=certify)

    def rsample(
        self,
        sample_shape: Any = _ONE,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        *,
        certify: Certify = "layers",
    ) -> Tensor:
        """Draw with gradients, by the implicit function theorem; otherwise like :meth:`sample`."""
        noise = self._noise(sample_shape, generator, temperature)
        return certified_inverse(self.bijection, noise, self.context, certify)[0]

    def rsample_and_log_prob(
        self,
        sample_shape: Any = _ONE,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        *,
        certify: Certify = "layers",
    ) -> tuple[Tensor, Tensor]:
        """Draw with gradients, and the log-density of the draws, in one pass.

        The log-density is that of the flow at temperature 1. Guarantees and arguments are those of
        :meth:`sample`.
        """
        noise = self._noise(sample_shape, generator, temperature)
        x, ladj, _ = certified_inverse(self.bijection, noise, self.context, certify)
        return x, _finite_log_density(self._log_prob_of_noise(noise) - ladj)

    def _noise(self, sample_shape: Any, generator: torch.Generator | None, temperature: float) -> Tensor:
        check_temperature(temperature)
        sample_shape = Size([sample_shape] if isinstance(sample_shape, int) else sample_shape)
        noise = self.base.draw((*sample_shape, *self.batch_shape), generator, self._like)
        return noise if temperature == 1 else temperature * noise

    @property
    def _like(self) -> Tensor:
        """A tensor with the dtype and on the device of the noise: the first parameter, if there is one."""
        for parameter in self.bijection.parameters():
            return parameter
        tensors = [*self.base.parameters(), *self.bijection.buffers(), *self.base.buffers(), torch.empty(0)]
        return next(t for t in tensors if t.is_floating_point()) if self.context is None else self.context


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


def check_temperature(temperature: float) -> None:
    """Raise an :class:`~sinuflow.ArgumentError` unless the temperature is finite and at least 0."""
    if not 0 <= temperature < math.inf:
        raise ArgumentError(f"temperature must be finite and at least 0; got {temperature!r}")


def context_batch_shape(context: Tensor | None, size: int) -> Size:
    """The batch shape of a context, or an error if the context does not fit a flow with ``context=size``."""
    if context is None:
        if size:
            raise ArgumentError(f"this flow is conditional: call it with a context of shape (..., {size})")
        return Size()
    if not size:
        raise ArgumentError(
            f"this flow was built with context=0, but was given a context of shape {tuple(context.shape)}"
        )
    check_vectors(context, size, "context")
    return context.shape[:-1]


def _finite_log_density(log_density: Tensor) -> Tensor:
    """The log-density of draws, or an :class:`~sinuflow.InversionError` where it overflows; NaN in compiled graphs."""
    finite = log_density.detach().isfinite()
    if torch.compiler.is_compiling():
        return torch.where(finite, log_density, torch.nan)
    if not bool(finite.all()):
        raise InversionError(
            f"the log-density of {int((~finite).sum())} of {finite.numel()} draws overflows {log_density.dtype}: "
            "use a lower temperature, or float64"
        )
    return log_density


def _refuse_non_finite(x: Tensor, name: str) -> None:
    finite = x.isfinite().all(-1)
    if not bool(finite.all()):
        raise ArgumentError(
            f"{name} is NaN or infinite in {int((~finite).sum())} of {finite.numel()} rows: remove them, "
            "or pass validate_args=False to get NaN for those rows"
        )
