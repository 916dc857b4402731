"""Flow: a bijection and a base distribution make a density."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..bijections import Bijection, Chain
from ..bijections.base import all_finite, from_feature_major, raise_unless_converged
from ..checks import choice, instance
from ..errors import ArgumentError, StorageError
from ..registry import Component, register
from ..solvers import Inversion, SolverOptions
from ..solvers.options import Method
from .bases import Base, StandardNormal
from .distribution import FlowDistribution, FlowTransform
from .inversion import round_trip
from .storage import Model, check_storable, write_model

if TYPE_CHECKING:
    from .drawing import Drawing


@register
class Flow(Component, nn.Module):
    r"""The density :math:`p(x) = p_{\text{base}}(T^{-1}(x)) \, |\det J_{T^{-1}}(x)|`.

    Calling the flow gives a :class:`torch.distributions.Distribution`.

    Args:
        bijection: :math:`T^{-1}`, from data to noise, such as a :class:`~sinuflow.bijections.Chain`. If it has a
            context, the flow is called with one; the base does not see it.
        base: the density of the noise; the standard normal by default.

    Example:
        >>> from sinuflow.bijections import Chain, ElementwiseAffine, LDUBlock
        >>> from sinuflow.flows.bases import StudentT
        >>> chain = Chain([LDUBlock(2, hidden=(16,)), ElementwiseAffine(2)])
        >>> flow = Flow(chain, base=StudentT(2, df=3.0, learnable=True))
        >>> x, log_prob = flow().rsample_and_log_prob((5,))
        >>> x.shape, log_prob.shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    #: The version of the file format that stores the flow's :attr:`config`.
    format_version: ClassVar[int] = 2

    def __init__(self, bijection: Bijection, base: Base | None = None) -> None:
        super().__init__()
        instance("bijection", bijection, Bijection)
        if base is None:
            base = StandardNormal(bijection.features)
        instance("base", base, Base)
        if base.features != bijection.features:
            raise ArgumentError(f"the base has {base.features} features, but the bijection has {bijection.features}")
        self.features: int = bijection.features
        self.context: int = bijection.context
        self.bijection, self.base = bijection, base
        self._refuse_shared_parts()

    def _refuse_shared_parts(self) -> None:
        """Refuse a part with parameters or buffers that is in two layers: a file holds every tensor once."""
        first: dict[nn.Module, str] = {}
        for name, module in self.named_modules(remove_duplicate=False):
            other = first.setdefault(module, name)
            if other != name and module.state_dict() and isinstance(module, Component):
                kind = type(module).__name__
                raise ArgumentError(f"{other} and {name} are the same {kind}: create one instance for each")

    @property
    def config(self) -> dict[str, Any]:
        """What is stored beside the weights: the flow's :meth:`spec` as JSON data."""
        return self.spec().to_json()

    @property
    def normal_chain(self) -> Chain | None:
        """The bijection if it is a chain and the base is the standard normal, as fused kernels assume; or None."""
        return self.bijection if isinstance(self.bijection, Chain) and type(self.base) is StandardNormal else None

    def forward(self, context: Tensor | None = None, validate_args: bool | None = None) -> FlowDistribution:
        """The density, given the context if the flow was built for one."""
        return FlowDistribution(self.bijection, self.base, context, validate_args=validate_args)

    def transform(self, context: Tensor | None = None) -> FlowTransform:
        """The bijection from data to noise as a :class:`torch.distributions.Transform`; ``.inv`` generates."""
        return FlowTransform(self.bijection, context)

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        """Set what depends on data: an affine map at the end of a chain gives z mean 0 and variance 1 on ``x``.

        A flow without such a layer, as ``conditioning="full"``, is not changed: give it standardised data.
        """
        rows, context_rows, _ = self.bijection.feature_major(x, context, "x")
        if not rows.shape[-1] or not bool(rows.isfinite().all()):
            raise ArgumentError("x must have at least one row, and no NaN or infinity, to initialise from")
        with torch.no_grad():
            self.bijection.initialize(rows, context_rows)
        self.bijection.check_parameters()

    def invert(
        self,
        z: Tensor,
        context: Tensor | None = None,
        *,
        solver: Method = "certified",
        rtol: float | None = None,
        atol: float | None = None,
        max_iterations: int | None = None,
        on_failure: Literal["raise", "return"] = "raise",
    ) -> Inversion:
        """Noise to data, with a certificate for every sample.

        Guarantee: every sample maps back to its noise through the whole flow, within the tolerance, or an
        :class:`~sinuflow.InversionError` is raised.

        Args:
            z: noise of shape (..., features).
            context: as for the flow itself.
            solver: ``"certified"``: ordered substitution and safeguarded Newton, to working precision; or
                ``"fixed_point"``: Algorithm 1 of the paper, for every transformer and shift.
            rtol, atol: for the certified solver, the tolerance of the residual, which is measured end to
                end (1e-12 in float64, 1e-4 in float32); for the other, Algorithm 1's tolerances in each
                layer (1e-12, 1e-6).
            max_iterations: per layer; 200 by default, 1000 for Algorithm 1.
            on_failure: ``"raise"`` an :class:`~sinuflow.InversionError` unless every sample converged, or
                ``"return"`` the result with ``converged`` False. The latter works in a compiled full graph.
        """
        choice("on_failure", on_failure, ("raise", "return"))
        options = SolverOptions(solver, rtol, atol, max_iterations)
        rows, context_rows, shape = self.bijection.feature_major(z, context, "z")
        result = self.bijection.certified(rows, context_rows, options)
        x = from_feature_major(result.x, shape).contiguous()
        trip = round_trip(self.bijection, x, z, context, options)
        if on_failure == "raise":
            raise_unless_converged(result, list(self.bijection.layer_names()))
            trip.demand(self.bijection, "pass a larger rtol, or on_failure='return'")
        converged = result.converged.all(0).reshape(shape) & trip.accurate
        iterations = result.iterations.amax(0).reshape(shape)
        return Inversion(x, result.ladj.reshape(shape), iterations, trip.residual, converged)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow to one safetensors file, atomically; :func:`sinuflow.load` reads it.

        Parameters that are NaN or infinite, or that collapse all draws to one point, are refused with a
        :class:`~sinuflow.StorageError`, and so are classes without :func:`@sinuflow.register <sinuflow.register>`:
        no such file could be loaded.
        """
        state = self.usable_state(path)
        if "format_version" in vars(type(self)):
            write_model(path, Model("flow", self.config, state), self.format_version)
        else:  # a subclass, whose base's configuration does not name it
            write_model(path, Model("flow", self.spec().to_json(), state), Flow.format_version)

    def check_storable(self, path: str | os.PathLike[str]) -> None:
        """Raise a :class:`~sinuflow.StorageError` if :meth:`save` could not write the flow, whatever its parameters."""
        try:
            for module in self.modules():
                if isinstance(module, Component):
                    module.check_parts()
            spec = self.spec()
            spec.to_json()
        except StorageError as error:
            raise StorageError(f"cannot write {path}: {error}") from error
        check_storable(path, spec, self.state_dict())

    def check_parameters(self) -> None:
        """Raise an :class:`~sinuflow.ArgumentError` if a parameter is not finite, or a layer is degenerate."""
        self.bijection.check_parameters()
        for name, parameter in self.base.named_parameters():
            if not all_finite(parameter):
                raise ArgumentError(
                    f"the parameter {name!r} of the base is NaN or infinite: restore earlier parameters"
                )

    def usable_state(self, path: str | os.PathLike[str]) -> dict[str, Tensor]:
        """The parameters by name, to be written to ``path``; or an error that says why they cannot be loaded again."""
        try:
            self.check_parameters()
        except ArgumentError as error:
            raise StorageError(f"cannot write {path}: {error}") from error
        self.check_storable(path)
        return self.state_dict()

    def draw(self) -> Drawing:
        """A drawing of the layers and their sizes: shown by notebooks, and saved by ``.save("flow.svg")``."""
        from .drawing import draw

        return draw(self)
