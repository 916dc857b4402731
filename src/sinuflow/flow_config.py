"""Hyperparameters of flows, validated for constructors and files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch

from .checks import choice, is_number, shortened, whole
from .errors import ArgumentError
from .ops.activations import check_activation
from .registry import Spec

Conditioning = Literal["shift", "full", "none"]
ImageConditioning = Literal["shift", "affine"]

#: The hidden layers of the network that maps a context to the waves of a sinusoidal layer.
CONTEXT_HIDDEN = (64,)

#: Defaults that depend on the conditioning.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "shift": {"blocks": 12, "scales": 4, "squash": 0.0},
    "full": {"blocks": 6, "scales": 2, "squash": 4.0},
    "none": {"blocks": 12, "scales": 4, "squash": 0.0},
}


@dataclass
class FlowConfig:
    """The hyperparameters of a :class:`~sinuflow.SinusoidalFlow` over vectors, with all defaults filled in.

    Example:
        >>> config = FlowConfig(features=2, conditioning="full", hidden=(8,))
        >>> config.blocks, config.squash
        (6, 4.0)
    """

    features: int
    context: int = 0
    conditioning: Conditioning = "shift"
    blocks: int | None = None
    scales: int | None = None
    waves: int = 4
    hidden: Sequence[int] = (256, 256)
    residual: bool = False
    activation: str = "relu"
    dropout: float = 0.0
    squash: float | None = None

    def __post_init__(self) -> None:
        choice("conditioning", self.conditioning, _DEFAULTS)
        for name, value in _DEFAULTS[self.conditioning].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        for name in ("features", "blocks", "scales", "waves"):
            setattr(self, name, whole(name, getattr(self, name), 1))
        self.context = whole("context", self.context, 0)
        if not isinstance(self.hidden, (tuple, list)):
            raise ArgumentError(f"hidden must be a sequence of layer sizes, such as (256, 256); got {self.hidden!r}")
        self.hidden = [whole("every entry of hidden", width, 1) for width in self.hidden]
        self.residual = bool(self.residual)
        check_residual(self.residual, self.hidden)
        check_activation(self.activation)
        if not is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout must be at least 0 and below 1; got {self.dropout!r}")
        if not is_number(self.squash) or not self.squash >= 0:
            raise ArgumentError(f"squash must be a positive width, 0 for off, or None; got {self.squash!r}")
        self.dropout, self.squash = float(self.dropout), float(self.squash or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The arguments of the constructor by name, as stored beside the weights."""
        return dict(vars(self))

    def spec(self) -> Spec:
        """The flow as a component."""
        return Spec("SinusoidalFlow", vars(self))


@dataclass
class ImageFlowConfig:
    """The hyperparameters of :meth:`SinusoidalFlow.image <sinuflow.SinusoidalFlow.image>`.

    Example:
        >>> ImageFlowConfig(shape=(1, 8, 8), blocks=2).features
        64
    """

    shape: Sequence[int] = (1, 28, 28)
    context: int = 0
    blocks: int = 12
    scales: int = 4
    waves: int = 4
    channels: int = 16
    residual_blocks: int = 2
    conditioning: ImageConditioning = "shift"

    def __post_init__(self) -> None:
        self.shape = image_shape(self.shape)
        for name in ("blocks", "scales", "waves", "channels"):
            setattr(self, name, whole(name, getattr(self, name), 1))
        for name in ("context", "residual_blocks"):
            setattr(self, name, whole(name, getattr(self, name), 0))
        check_channels(self.channels, self.shape[0])
        check_image_conditioning(self.conditioning)

    def as_dict(self) -> dict[str, Any]:
        """The configuration that is stored beside the weights; the key ``image`` marks it as an image flow."""
        own = dict(vars(self))
        return {"image": list(own.pop("shape")), **own}

    def spec(self) -> Spec:
        """The flow as a component."""
        return Spec("ImageFlow", vars(self))

    @property
    def features(self) -> int:
        """The dimension of the flow."""
        return math.prod(self.shape)


def flow_config(config: Mapping[str, Any]) -> FlowConfig | ImageFlowConfig:
    """The hyperparameters of a stored configuration; raises an :class:`~sinuflow.ArgumentError` if it is invalid."""
    if not isinstance(config, Mapping):
        raise ArgumentError(f"a configuration must be an object with named fields; got a {type(config).__name__}")
    kind: type[FlowConfig] | type[ImageFlowConfig] = ImageFlowConfig if "image" in config else FlowConfig
    arguments = {"shape" if name == "image" else name: value for name, value in config.items()}
    unknown = sorted(map(str, arguments.keys() - {field.name for field in fields(kind)}))
    if unknown:
        raise ArgumentError(f"a flow has no hyperparameter {unknown[0][:60]!r}")
    if "features" not in arguments and kind is FlowConfig:
        raise ArgumentError("features must be given")
    return kind(**arguments)


def image_shape(shape: Any) -> tuple[int, int, int]:
    """(C, H, W) as integers, or an :class:`~sinuflow.ArgumentError`."""
    sizes = [int(n) for n in shape if hasattr(n, "__index__")] if isinstance(shape, (tuple, list, torch.Size)) else []
    if len(sizes) != 3 or len(shape) != 3 or min(sizes) < 1:
        raise ArgumentError(f"shape must be (channels, height, width), such as (1, 28, 28); got {shortened(shape)}")
    return sizes[0], sizes[1], sizes[2]


def check_residual(residual: bool, hidden: Sequence[int]) -> None:
    """Refuse residual blocks of different widths: they add a layer's input to its output."""
    if residual and len(set(hidden)) > 1:
        raise ArgumentError(f"residual=True needs hidden layers of one size; got hidden={tuple(hidden)}")


def check_channels(channels: int, colours: int) -> None:
    """Refuse fewer feature maps than image channels: each channel needs its own."""
    if channels < colours:
        raise ArgumentError(
            f"channels must be at least {colours}, the number of channels of the image, so that each of them "
            f"has feature maps; got {channels}"
        )


def check_image_conditioning(conditioning: Any) -> None:
    """Refuse a conditioning that image flows do not have."""
    choice("conditioning of images", conditioning, get_args(ImageConditioning))
