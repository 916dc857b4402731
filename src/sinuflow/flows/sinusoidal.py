"""SinusoidalFlow: a flow over vectors, built from hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..bijections import AutoregressiveWaves, Bijection, Chain, ElementwiseAffine, LDUBlock, SinusoidalLayer
from ..flow_config import Conditioning, FlowConfig, ImageFlowConfig, flow_config
from ..registry import build, register
from .flow import Flow

if TYPE_CHECKING:
    from .image import ImageFlow


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
    hyperparameters: FlowConfig | ImageFlowConfig
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
        config = FlowConfig(
            features, context, conditioning, blocks, scales, waves, hidden, residual, activation, dropout, squash
        )
        assert config.blocks is not None
        layer, network = (
            {name: getattr(config, name) for name in names}
            for names in (("features", "context", "scales", "waves"), ("hidden", "residual", "activation", "dropout"))
        )
        network["squash_width"] = config.squash or None
        layers: list[Bijection]
        if conditioning == "full":
            layers = [AutoregressiveWaves(**layer, reverse=bool(i % 2), **network) for i in range(config.blocks)]
        elif conditioning == "shift":
            layers = [LDUBlock(**layer, **network) for _ in range(config.blocks)]
        else:
            layers = [SinusoidalLayer(**layer) for _ in range(config.blocks)]
        if conditioning != "full":
            layers.append(ElementwiseAffine(config.features))
        super().__init__(Chain(layers))
        self.hyperparameters = config

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, with the defaults filled in: what is stored beside the weights."""
        return self.hyperparameters.as_dict()

    @staticmethod
    def from_config(config: dict[str, Any]) -> SinusoidalFlow:
        """A fresh flow with the given :attr:`config`, over vectors or over images.

        Example:
            >>> flow = SinusoidalFlow.image(shape=(1, 4, 4), blocks=1)
            >>> SinusoidalFlow.from_config(flow.config).features
            16
        """
        return cast("SinusoidalFlow", build(flow_config(config).spec()))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items())
