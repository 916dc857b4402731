"""SinusoidalFlow: parameters in, a distribution out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..bijections import AutoregressiveWaves, Bijection, Chain, ElementwiseAffine, LDUBlock, SinusoidalLayer
from ..bijections.base import raise_unless_converged
from ..bijections.image import image_chain
from ..errors import ArgumentError, StorageError
from ..flow_config import Conditioning, FlowConfig, ImageConditioning, ImageFlowConfig, flow_config
from ..solvers import Inversion, SolverOptions
from ..solvers.options import Method
from .distribution import FlowDistribution
from .inversion import inverse_with_certificate, round_trip
from .storage import Model, write_model
from .transform import FlowTransform

if TYPE_CHECKING:
    from .drawing import Drawing


class SinusoidalFlow(nn.Module):
    r"""The Sinusoidal Flow (Wei, 2021): a density :math:`p(x) = N(T^{-1}(x)) \, |\det J_{T^{-1}}(x)|`.

    Calling the flow gives a :class:`torch.distributions.Distribution`.

    Args:
        features: the dimension D of x.
        context: the dimension of what the density is conditioned on; 0 for none.
        conditioning: ``"shift"`` is the paper's flow: ``blocks`` LDU blocks, in which networks compute
            shifts and the sinusoidal scales are independent of x. ``"full"`` has ``blocks`` layers of
            conditional waves instead, in which a network computes every parameter, with the order of
            the features alternating. ``"none"`` has the sinusoidal scales alone, feature by feature.
        blocks: 12 by default, 6 for ``"full"``.
        scales: sinusoidal transformers in a chain per block; 4 by default, 2 for ``"full"``.
        waves: sine waves per transformer.
        hidden: sizes of the networks' hidden layers.
        residual: whether every hidden layer after the first is a residual block of two layers.
        activation: elu, gelu, leaky_relu, relu, silu or tanh.
        dropout: probability of dropping a hidden unit while training.
        squash: if a number s, the networks see :math:`x / \sqrt{1 + (x/s)^2}`, which keeps the density
            tame far from the data; 4 by default for ``"full"``. ``None`` takes the default, ``0`` is off.

    Example:
        >>> flow = SinusoidalFlow(features=2, blocks=2, hidden=(32,))
        >>> x = flow().sample((5,))
        >>> flow().log_prob(x).shape
        torch.Size([5])
        >>> z, ladj = flow.bijection(x)
        >>> bool((flow.invert(z).residual < 1e-4).all())
        True
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        conditioning: Conditioning = "shift",
        blocks: int | None = None,
        scales: int | None = None,
        waves: int = 4,
        hidden: Sequence[int] = (256, 256),
        residual: bool = False,
        activation: str = "relu",
        dropout: float = 0.0,
        squash: float | None = None,
    ) -> None:
        super().__init__()
        config = FlowConfig(
            features, context, conditioning, blocks, scales, waves, hidden, residual, activation, dropout, squash
        )
        self.features: int = config.features
        self.context: int = config.context
        #: The constructor's arguments, with the defaults filled in: what is stored beside the weights.
        self.config: dict[str, Any] = config.as_dict()
        network: dict[str, Any] = {
            "hidden": config.hidden,
            "residual": config.residual,
            "activation": config.activation,
            "dropout": config.dropout,
            "squash_width": config.squash or None,
        }
        size = (config.features, config.context)
        number, scales, waves = self.config["blocks"], self.config["scales"], config.waves
        layers: list[Bijection]
        if conditioning == "full":
            layers = [
                AutoregressiveWaves(*size, scales=scales, waves=waves, reverse=bool(i % 2), **network)
                for i in range(number)
            ]
        elif conditioning == "shift":
            layers = [LDUBlock(*size, scales, waves, **network) for _ in range(number)]
        else:
            layers = [SinusoidalLayer(config.features, scales, waves, config.context) for _ in range(number)]
        if conditioning != "full":
            layers.append(ElementwiseAffine(config.features))
        self.bijection = Chain(layers)

    @classmethod
    def image(
        cls,
        shape: Sequence[int] = (1, 28, 28),
        context: int = 0,
        blocks: int = 12,
        scales: int = 4,
        waves: int = 4,
        channels: int = 16,
        residual_blocks: int = 2,
        conditioning: ImageConditioning = "shift",
    ) -> SinusoidalFlow:
        r"""A flow of images: LDU blocks whose shifts are computed by a miniature PixelCNN, as in the paper.

        Images are vectors of ``features`` = C·H·W numbers, here as everywhere: give it ``x.flatten(-3)``, and take
        samples as ``x.view(-1, C, H, W)``. For images of bytes, see :class:`sinuflow.data.images.PixelMap`.

        Args:
            shape: (C, H, W).
            context: the dimension of what the density is conditioned on, such as 10 for a one-hot class; 0 for none.
                The networks see it, and the waves do not.
            blocks: LDU blocks.
            scales: sinusoidal transformers in a chain per block.
            waves: sine waves per transformer.
            channels: feature maps of the networks' bottlenecks; twice as many outside of them.
            residual_blocks: of every network.
            conditioning: what the networks compute: ``"shift"`` is the paper's, and with ``"affine"`` they also say how
                surely, by a bounded log-scale beside each shift. It learns images better.

        Example:
            >>> flow = SinusoidalFlow.image(shape=(1, 8, 8), blocks=2)
            >>> x = torch.randn(5, 1, 8, 8)
            >>> flow().log_prob(x.flatten(-3)).shape
            torch.Size([5])
            >>> flow().sample((3,)).view(-1, 1, 8, 8).shape
            torch.Size([3, 1, 8, 8])
        """
        config = ImageFlowConfig(shape, context, blocks, scales, waves, channels, residual_blocks, conditioning)
        flow = cls.__new__(cls)
        nn.Module.__init__(flow)
        flow.config = config.as_dict()
        options = {name: value for name, value in flow.config.items() if name != "image"}
        flow.bijection = image_chain(config.shape, **options)
        flow.features, flow.context = config.features, config.context
        return flow

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SinusoidalFlow:
        """A fresh flow of the given :attr:`config`, whichever kind it is of.

        Example:
            >>> flow = SinusoidalFlow.image(shape=(1, 4, 4), blocks=1)
            >>> SinusoidalFlow.from_config(flow.config).features
            16
        """
        known = flow_config(config)
        arguments = {name: getattr(known, name) for name in vars(known)}
        return cls.image(**arguments) if isinstance(known, ImageFlowConfig) else cls(**arguments)

    def forward(self, context: Tensor | None = None, validate_args: bool | None = None) -> FlowDistribution:
        """The density, given the context if the flow was built for one."""
        return FlowDistribution(self.bijection, context, validate_args=validate_args)

    def transform(self, context: Tensor | None = None) -> FlowTransform:
        """The map from data to noise as a :class:`torch.distributions.Transform`; ``.inv`` generates."""
        return FlowTransform(self.bijection, context)

    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        """Set what depends on data: the final affine map, so that z has mean 0 and variance 1 on ``x``.

        ``conditioning="full"`` has none and stays as it is: give it standardised data.
        """
        rows, given, _ = self.bijection.feature_major(x, context, "x")
        if not rows.shape[-1] or not bool(rows.isfinite().all()):
            raise ArgumentError("x must have at least one row, and no NaN or infinity, to initialise from")
        with torch.no_grad():
            self.bijection.initialize(rows, given)
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
        """Noise to data, with the evidence beside the answer.

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
                ``"return"`` what there is. The latter works in a compiled full graph.
        """
        if on_failure not in ("raise", "return"):
            raise ArgumentError(f"on_failure must be 'raise' or 'return'; got {on_failure!r}")
        options = SolverOptions(solver, rtol, atol, max_iterations)
        result = inverse_with_certificate(self.bijection, z, context, options)
        trip = round_trip(self.bijection, result.x, z, context, options)
        if on_failure == "raise":
            raise_unless_converged(result, list(self.bijection.layer_names()))
            trip.demand("pass a larger rtol, or on_failure='return'")
        shape = result.ladj.shape
        converged = result.converged.all(0).reshape(shape) & trip.accurate
        iterations = result.iterations.amax(0).reshape(shape)
        return Inversion(result.x, result.ladj, iterations, trip.residual, converged)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow to one safetensors file, atomically; :func:`sinuflow.load` reads it.

        Parameters that are NaN or infinite, or that collapse all draws to one point, are refused with a
        :class:`~sinuflow.StorageError`: no file of such could be loaded.
        """
        write_model(path, Model("flow", self.config, self.usable_state(path)))

    def usable_state(self, path: str | os.PathLike[str]) -> dict[str, Tensor]:
        """The parameters by name, to be written to ``path``; or an error that says why no file may hold them."""
        try:
            self.bijection.check_parameters()
        except ArgumentError as error:
            raise StorageError(f"cannot write {path}: {error}") from error
        return self.state_dict()

    def draw(self) -> Drawing:
        """A picture of the flow, with its own numbers: shown by notebooks, and saved by ``.save("flow.svg")``."""
        from .drawing import Drawing, anatomy, svg_of  # nobody else needs it

        return Drawing(svg_of(anatomy(self.bijection)))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items())
