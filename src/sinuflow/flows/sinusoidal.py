"""SinusoidalFlow and ImageFlow: flows over vectors and over images, built from hyperparameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from ..bijections import AutoregressiveWaves, Bijection, Chain, ElementwiseAffine, LDUBlock, SinusoidalLayer
from ..bijections.image import ImageConditioning, image_chain
from ..checks import check_residual, choice, image_shape, is_number, whole
from ..errors import ArgumentError
from ..ops.activations import ACTIVATIONS
from ..registry import Spec, build, register
from .flow import Flow

Conditioning = Literal["shift", "full", "none"]
#: Defaults that depend on the conditioning.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "shift": {"blocks": 12, "scales": 4, "squash": 0.0},
    "full": {"blocks": 6, "scales": 2, "squash": 4.0},
    "none": {"blocks": 12, "scales": 4, "squash": 0.0},
}


@register
class SinusoidalFlow(Flow):
    r"""The Sinusoidal Flow (Wei, 2021): a density :math:`p(x) = N(T^{-1}(x)) \, |\det J_{T^{-1}}(x)|`.

    Calling the flow gives a :class:`torch.distributions.Distribution`.

    Args:
        features: the dimension D of x.
        context: the dimension of what the density is conditioned on; 0 for none.
        conditioning: ``"shift"`` is the paper's flow: ``blocks`` LDU blocks, in which networks compute
            shifts and the sinusoidal layers are independent of x. ``"full"`` has ``blocks`` layers of
            conditional waves instead, in which a network computes every parameter, with the order of
            the features alternating. ``"none"`` has the sinusoidal layers alone, feature by feature.
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

    format_version: ClassVar[int] = 1
    bijection: Chain
    _config: dict[str, Any]
    #: ``SinusoidalFlow.image(...)`` is an :class:`~sinuflow.ImageFlow`.
    image: ClassVar[type[ImageFlow]]

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
        choice("conditioning", conditioning, _DEFAULTS)
        default = _DEFAULTS[conditioning]
        squash = default["squash"] if squash is None else squash
        if not isinstance(hidden, (tuple, list)):
            raise ArgumentError(f"hidden must be a sequence of layer sizes, such as (256, 256); got {hidden!r}")
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ArgumentError(f"dropout must be at least 0 and below 1; got {dropout!r}")
        if not is_number(squash) or not squash >= 0:
            raise ArgumentError(f"squash must be a positive width, 0 for off, or None; got {squash!r}")
        config: dict[str, Any] = {
            "features": whole("features", features, 1),
            "context": whole("context", context, 0),
            "conditioning": conditioning,
            "blocks": whole("blocks", default["blocks"] if blocks is None else blocks, 1),
            "scales": whole("scales", default["scales"] if scales is None else scales, 1),
            "waves": whole("waves", waves, 1),
            "hidden": [whole("every entry of hidden", width, 1) for width in hidden],
            "residual": bool(residual),
            "activation": choice("activation", activation, ACTIVATIONS),
            "dropout": float(dropout),
            "squash": float(squash),
        }
        check_residual(config["residual"], config["hidden"])
        layer = {name: config[name] for name in ("features", "context", "scales", "waves")}
        network = {name: config[name] for name in ("hidden", "residual", "activation", "dropout")}
        network["squash_width"] = config["squash"] or None
        layers: list[Bijection]
        if conditioning == "full":
            layers = [AutoregressiveWaves(**layer, reverse=bool(i % 2), **network) for i in range(config["blocks"])]
        elif conditioning == "shift":
            layers = [LDUBlock(**layer, **network) for _ in range(config["blocks"])]
        else:
            layers = [SinusoidalLayer(**layer) for _ in range(config["blocks"])]
        if conditioning != "full":
            layers.append(ElementwiseAffine(config["features"]))
        super().__init__(Chain(layers))
        self._config = config

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, with the defaults filled in: what is stored beside the weights."""
        return {**self._config}

    @staticmethod
    def from_config(config: dict[str, Any]) -> SinusoidalFlow:
        """A fresh flow with the given :attr:`config`, over vectors or over images.

        Example:
            >>> flow = SinusoidalFlow.image(shape=(1, 4, 4), blocks=1)
            >>> SinusoidalFlow.from_config(flow.config).features
            16
        """
        return cast("SinusoidalFlow", build(flow_spec(config)))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items())


@register
class ImageFlow(SinusoidalFlow):
    r"""The paper's flow over images: LDU blocks whose shifts are computed by a miniature PixelCNN.

    Images are vectors of ``features`` = C·H·W values: pass ``x.flatten(-3)``, and reshape samples with
    ``x.view(-1, C, H, W)``. For images of bytes, see :class:`sinuflow.bijections.pixels.PixelMap`.

    Args:
        shape: (C, H, W).
        context: the dimension of what the density is conditioned on, such as 10 for a one-hot class; 0 for none.
            The networks see it, and the sinusoidal layers do not.
        blocks: LDU blocks.
        scales: sinusoidal transformers in a chain per block.
        waves: sine waves per transformer.
        channels: feature maps of the networks' bottlenecks; twice as many outside of them.
        residual_blocks: residual blocks in every network.
        conditioning: what the networks compute: ``"shift"`` is the paper's flow; ``"affine"`` adds a bounded
            log-scale to each shift, and reaches lower bits/dim.

    Example:
        >>> import torch
        >>> flow = ImageFlow(shape=(1, 8, 8), blocks=2)
        >>> x = torch.randn(5, 1, 8, 8)
        >>> flow().log_prob(x.flatten(-3)).shape
        torch.Size([5])
        >>> flow().sample((3,)).view(-1, 1, 8, 8).shape
        torch.Size([3, 1, 8, 8])
    """

    format_version: ClassVar[int] = 1

    def __init__(
        self,
        shape: Sequence[int] = (1, 28, 28),
        context: int = 0,
        blocks: int = 12,
        scales: int = 4,
        waves: int = 4,
        channels: int = 16,
        residual_blocks: int = 2,
        conditioning: ImageConditioning = "shift",
    ) -> None:
        sizes = image_shape(shape)
        options: dict[str, Any] = {
            "context": whole("context", context, 0),
            "blocks": whole("blocks", blocks, 1),
            "scales": whole("scales", scales, 1),
            "waves": whole("waves", waves, 1),
            "channels": whole("channels", channels, 1),
            "residual_blocks": whole("residual_blocks", residual_blocks, 0),
            "conditioning": conditioning,
        }
        Flow.__init__(self, image_chain(sizes, **options))
        self._config = {"image": list(sizes), **options}


SinusoidalFlow.image = ImageFlow


def flow_spec(config: Any) -> Spec:
    """The spec of a flow with these hyperparameters, of which ``image`` marks an image flow."""
    if not isinstance(config, Mapping):
        raise ArgumentError(f"a configuration must be an object with named fields; got a {type(config).__name__}")
    kind = ImageFlow if "image" in config else SinusoidalFlow
    arguments = {"shape" if name == "image" else name: value for name, value in config.items()}
    unknown = sorted(map(str, arguments.keys() - inspect.signature(kind).parameters.keys()))
    if unknown:
        raise ArgumentError(f"a flow has no hyperparameter {unknown[0][:60]!r}")
    if "features" not in arguments and kind is SinusoidalFlow:
        raise ArgumentError("features must be given")
    return Spec(kind.__name__, arguments)
