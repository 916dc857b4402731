"""What every bijection has in common, and chains of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..checks import demand_shape, instance
from ..errors import ArgumentError, InversionError, SinuflowError
from ..ops.autograd import needs_gradients
from ..registry import Component, Spec, register
from ..solvers import Inversion, SolverOptions
from .batch_splitting import split_if_out_of_memory

if TYPE_CHECKING:
    from ..ops.flow_program import FlowProgram

CERTIFIED = SolverOptions()
#: PyTorch's layers with a dropout probability p.
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def raise_unless_converged(result: Inversion, names: Sequence[str]) -> None:
    """Raise an :class:`InversionError` unless every layer, of these names, met its tolerance for every sample."""
    if bool(result.converged.all()):
        return
    layer = int((~result.converged).any(1).nonzero()[0])
    failed = ~result.converged[layer]
    residuals = result.residual[layer][failed]
    residuals = residuals[residuals.isfinite()]
    if len(residuals):
        why = (
            f"after {int(result.iterations[layer].max())} iterations the largest residual is "
            f"{float(residuals.max()):.3g}. Try float64 or more iterations"
        )
    else:
        why = (
            "they are NaN or infinite, or the layer's parameters are degenerate. Look for such values in the input "
            "and the parameters (flow.bijection.check_parameters() names them), check that a transformer of your own "
            "increases from R onto R (sinuflow.testing.check_transformer)"
        )
    raise InversionError(
        f"layer {names[layer]!r} could not be inverted for {int(failed.sum())} of {len(failed)} samples: {why}, or get "
        "the result in any case with flow.invert(..., on_failure='return')."
    )


def _drops_out(module: nn.Module) -> bool:
    """Whether a module in training mode has active dropout: its own, or as one of PyTorch's layers."""
    rate = module.p if isinstance(module, _DROPOUT) else getattr(module, "dropout", 0.0)
    return isinstance(rate, (int, float)) and rate > 0


class Bijection(Component, nn.Module):
    r"""An invertible map :math:`z = T^{-1}(x)` of vectors, possibly with a context.

    ``forward`` is the paper's :math:`T^{-1}`, from data to noise; ``inverse`` is :math:`T`. Both return the result and
    the logarithm of the absolute Jacobian determinant of the map that they compute. Tensors have shape
    ``(..., features)``, the context ``(..., context)``, with any batch dimensions.

    Subclasses implement :meth:`transform` and :meth:`invert` for feature-major tensors, ``(features, rows)``: a
    feature's values are contiguous, and a parameter of a feature broadcasts along the fast axis.

    Example:
        >>> class Reversal(Bijection):
        ...     def transform(self, x, context):
        ...         return x.flip(0), x.new_zeros(x.shape[-1])
        ...     def invert(self, z, context, options):
        ...         return Inversion.exact(z.flip(0), z.new_zeros(z.shape[-1]))
        >>> Reversal(features=2).inverse(torch.tensor([[1.0, 2.0]]))[0]
        tensor([[2., 1.]])
    """

    def __init__(self, features: int, context: int = 0) -> None:
        super().__init__()
        if features < 1:
            raise ArgumentError(f"features must be at least 1; got {features}")
        if context < 0:
            raise ArgumentError(f"context must be at least 0; got {context}")
        self.features = features
        self.context = context

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """z of shape (D, B), and the log-determinant: of shape (B,), a scalar for all rows, or None for 0."""
        raise NotImplementedError(f"{type(self).__name__} must define transform")

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        """The inverse with its certificate; :meth:`Inversion.exact` makes one for a closed form."""
        raise NotImplementedError(f"{type(self).__name__} must define invert")

    def initialize(self, x: Tensor, context: Tensor | None) -> Tensor:
        """Initialize parameters from the batch (D, B), where they depend on data, and return z."""
        return self.transform(x, context)[0]

    def check_parameters(self) -> None:
        """Raise an :class:`~sinuflow.ArgumentError` if the parameters define no density that can be sampled.

        They must be finite, and no layer may be degenerate (:meth:`check_degenerate`).
        """
        for name, parameter in self.named_parameters():
            if not all_finite(parameter):
                finite = parameter.isfinite()
                raise ArgumentError(
                    f"the parameter {name!r} is NaN or infinite in {int((~finite).sum())} of {finite.numel()} "
                    "entries: restore earlier parameters"
                )
        for module in self.modules():
            if isinstance(module, Bijection):
                module.check_degenerate()

    def check_degenerate(self) -> None:
        """Raise an :class:`~sinuflow.ArgumentError` if this layer, in its dtype, maps different inputs to one point.

        The default checks nothing: bounded parametrisations are never degenerate.
        """

    def layer_names(self) -> Iterator[str]:
        """Names of the layers in the order in which :meth:`invert` inverts them."""
        yield type(self).__name__

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, context, shape = self.feature_major(x, context, "x")
        z, ladj = self.transformation(rows, context)
        ladj = z.new_zeros(z.shape[-1]) if ladj is None else ladj
        return from_feature_major(z, shape), ladj.reshape(shape)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x and the log-determinant of the inverse.

        Guarantee: each layer was inverted to working precision for every sample, or an :class:`InversionError` is
        raised. This does not bound the rounding error that accumulates over the layers, which can be large for
        ill-conditioned parameters: :meth:`sinuflow.SinusoidalFlow.invert` measures it and checks its tolerance.
        A compiled graph cannot raise; there, a sample that fails is NaN.
        """
        rows, context, shape = self.feature_major(z, context, "z")
        result = self.certified(rows, context, CERTIFIED)
        x, ladj = result.x, result.ladj
        if torch.compiler.is_compiling():
            converged = result.converged.all(0)
            x, ladj = torch.where(converged, x, torch.nan), torch.where(converged, ladj, torch.nan)
        else:
            raise_unless_converged(result, list(self.layer_names()))
        return from_feature_major(x, shape), ladj.reshape(shape)

    def transformation(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The result of :meth:`transform`, whose shapes are checked."""
        result = self.transform(x, context)
        if not isinstance(result, (tuple, list)):
            raise ArgumentError(
                f"{type(self).__name__}.transform must return z and its log-determinant; got a {type(result).__name__}"
            )
        z, ladj = result
        demand_shape(self, "transform", "z", z, x.shape, "(features, rows)")
        if ladj is not None:
            ladj = ladj.expand(x.shape[1:]) if ladj.dim() == 0 else ladj
            demand_shape(self, "transform", "a log-determinant", ladj, x.shape[1:], "(rows,)")
        return z, ladj

    def inversion(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        """The result of :meth:`invert`, whose type and shapes are checked."""
        result = self.invert(z, context, options)
        if not isinstance(result, Inversion):
            raise ArgumentError(
                f"{type(self).__name__}.invert must return an Inversion, such as Inversion.exact(x, ladj); "
                f"got a {type(result).__name__}"
            )
        demand_shape(self, "invert", "x", result.x, z.shape, "(features, rows)")
        demand_shape(self, "invert", "a log-determinant", result.ladj, z.shape[1:], "(rows,)")
        return result

    def certified(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        """The inverse of a feature-major batch, with one row of evidence for each layer, (layers, B).

        Whatever the layer or backend, a sample whose x or log-determinant is not finite has not converged: the
        last layer, which computed x, fails for it.
        """
        if any(m.training and _drops_out(m) for m in self.modules()):
            raise SinuflowError(
                "cannot invert or sample while dropout is active, because the map is random then: "
                "call .eval() on the flow first"
            )
        result = Inversion.stack([self.inversion(z, context, options)])
        zero = (result.x.detach() * 0).sum(0).add_(result.ladj.detach() * 0)  # 0 times infinity is NaN
        converged = result.converged.clone()
        converged[-1].logical_and_(zero == 0)
        return result._replace(converged=converged)

    def feature_major(self, x: Tensor, context: Tensor | None, name: str) -> tuple[Tensor, Tensor | None, torch.Size]:
        """``x`` as (D, B), the context as (C, B), and their common batch shape; checked."""
        check_vectors(x, self.features, name)
        shape = x.shape[:-1]
        if self.context:
            if context is None:
                raise ArgumentError(f"a context of shape (..., {self.context}) is needed")
            check_vectors(context, self.context, "context")
            if context.dtype != x.dtype:
                raise ArgumentError(f"the context has dtype {context.dtype}, but {name} has {x.dtype}")
            if context.device != x.device:
                raise ArgumentError(f"the context is on {context.device}, but {name} is on {x.device}")
            try:
                shape = torch.broadcast_shapes(shape, context.shape[:-1])
            except RuntimeError:
                raise ArgumentError(
                    f"{name} of shape {tuple(x.shape)} and context of shape {tuple(context.shape)} "
                    "have batch dimensions that do not broadcast"
                ) from None
            context = to_feature_major(context, shape)
        elif context is not None:
            raise ArgumentError(
                f"a context of shape {tuple(context.shape)} was passed, but this bijection was built with context=0"
            )
        for parameter in self.parameters():
            if parameter.dtype != x.dtype:
                raise ArgumentError(
                    f"{name} has dtype {x.dtype}, but the parameters have {parameter.dtype}: convert one of them "
                    f"({name}.to({parameter.dtype}) or flow.to({x.dtype}))"
                )
            if parameter.device != x.device:
                raise ArgumentError(
                    f"{name} is on {x.device}, but the parameters are on {parameter.device}: move one of them "
                    f"({name}.to({str(parameter.device)!r}) or flow.to({str(x.device)!r}))"
                )
            break  # PyTorch 2.6 cannot compile next(iterator, default)
        return to_feature_major(x, shape), context, shape


def check_vectors(x: Tensor, features: int, name: str) -> None:
    """Refuse what is not a floating-point tensor of shape (..., features)."""
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{name} must be a tensor of shape (..., {features}); got {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"{name} must have dtype torch.float32 or torch.float64; got {x.dtype}")
    if x.dim() < 1 or x.shape[-1] != features:
        raise ArgumentError(f"{name} must have shape (..., {features}); got {tuple(x.shape)}")


def to_feature_major(x: Tensor, shape: torch.Size) -> Tensor:
    """(..., D) broadcast to the batch shape, as (D, B): free if it came from :func:`from_feature_major`."""
    return x.expand(*shape, x.shape[-1]).movedim(-1, 0).reshape(x.shape[-1], -1)


def all_finite(t: Tensor) -> bool:
    """Whether a tensor has neither NaN nor infinity, without another tensor of its size."""
    return not t.numel() or bool(t.detach().amin().isfinite() & t.detach().amax().isfinite())


def from_feature_major(x: Tensor, shape: torch.Size) -> Tensor:
    """(D, B) as (..., D), without a copy."""
    return x.reshape(x.shape[0], *shape).movedim(0, -1)


def log_normal(z: Tensor) -> Tensor:
    """The standard normal log-density of feature-major z."""
    return -0.5 * (z * z).sum(0) - 0.5 * z.shape[0] * math.log(2 * math.pi)


@register
class Chain(Bijection):
    r"""The composition :math:`T_L^{-1} \circ \dots \circ T_1^{-1}`; the first is applied first.

    Example:
        >>> from sinuflow.bijections import ElementwiseAffine
        >>> chain = Chain([ElementwiseAffine(2), ElementwiseAffine(2)])
        >>> z, ladj = chain(torch.zeros(5, 2))
        >>> z.shape, ladj.shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    def __init__(self, bijections: Iterable[Bijection]) -> None:
        bijections = list(bijections) if isinstance(bijections, Iterable) else []
        if not bijections:
            raise ArgumentError("a chain needs at least one bijection")
        for b in bijections:
            instance("every entry of a chain", b, Bijection)
        super().__init__(bijections[0].features, max(b.context for b in bijections))
        for b in bijections:
            if b.features != self.features or b.context not in (0, self.context):
                raise ArgumentError(
                    f"a chain needs bijections of the same features and context; {type(b).__name__} has "
                    f"features={b.features}, context={b.context} beside {self.features}, {self.context}"
                )
        self.bijections = nn.ModuleList(bijections)

    def spec(self) -> Spec:
        recorded = self._recorded_spec()
        return Spec(recorded.name, {"bijections": [b.spec() for b in self]}) if self._is_plain else super().spec()

    def _current_parts(self) -> list[tuple[str, Component]]:
        return [] if self._is_plain else super()._current_parts()

    @property
    def _is_plain(self) -> bool:
        """Whether the bijections are the arguments, so that :meth:`spec` can describe them."""
        return type(self).__init__ is Chain.__init__

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.bijections)  # type: ignore[arg-type]

    @split_if_out_of_memory
    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        program = self._program(x)
        return self.layer_by_layer(x, context) if program is None else program.transform(x, context)

    def layer_by_layer(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The reference implementation of :meth:`transform`: one bijection after the other."""
        total: Tensor | None = None
        for bijection in self:
            x, ladj = bijection.transformation(x, context if bijection.context else None)
            if ladj is not None:
                total = ladj if total is None else total + ladj
        return x, x.new_zeros(x.shape[-1]) if total is None else total

    @split_if_out_of_memory
    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of a feature-major batch if z is standard normal, of shape (B,)."""
        program = self._program(x)
        if program is not None and not self._needs_gradients(x, context):
            return program.log_density(x, context)
        z, ladj = self.transform(x, context)
        return log_normal(z) + ladj

    @split_if_out_of_memory
    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        program = self._program(z) if options.method == "certified" else None
        if program is None or self._needs_gradients(z, context):
            return self.invert_layer_by_layer(z, context, options)
        return Inversion(*program.inverse(z, context, options.limit))

    def invert_layer_by_layer(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        """The reference implementation of :meth:`invert`: one bijection after the other."""
        layers: list[Inversion] = []
        for bijection in reversed(list(self)):
            layers.append(bijection.inversion(z, context if bijection.context else None, options))
            z = layers[-1].x
        return Inversion.stack(layers)

    def nll_gradient(self, x: Tensor, context: Tensor | None, out: Tensor) -> Tensor | None:
        """The log-densities of :meth:`log_density`, and in the flat tensor ``out`` the gradient of minus their mean.

        ``out`` has the parameters' gradients one after the other, and zeros to begin with. None where the fused op is
        not available.
        """
        program = self._program(x)
        return program.nll_gradient(x, context, out) if program is not None and program.has_gradients() else None

    def _needs_gradients(self, x: Tensor, context: Tensor | None) -> bool:
        given = () if context is None else (context,)
        return torch.is_grad_enabled() and needs_gradients(x, *given, *self.parameters())

    def _program(self, x: Tensor) -> FlowProgram | None:
        """The fused op for all bijections together, if there is one for this chain and this batch."""
        if not x.is_cuda:
            return None
        from ..ops.flow_program import flow_program

        return flow_program(self, x)

    def initialize(self, x: Tensor, context: Tensor | None) -> Tensor:
        for bijection in self:
            x = bijection.initialize(x, context if bijection.context else None)
        return x

    def layer_names(self) -> Iterator[str]:
        for i, bijection in reversed(list(enumerate(self))):
            for name in bijection.layer_names():
                yield f"{i}.{name}"
