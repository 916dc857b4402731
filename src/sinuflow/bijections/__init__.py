"""Bijections z = T⁻¹(x), from data to noise, with exact log-determinants and certified inverses."""

import warnings
from typing import Any

from .affine import ElementwiseAffine, Linear
from .autoregressive import Autoregressive, AutoregressiveWaves
from .base import Bijection, Chain
from .columns import ColumnMap, Log, Logit
from .image import ImageAffine, ImageLDUBlock, ImageShift
from .ldu import LDUBlock, LowerShift, UpperShift
from .sinusoidal import SinusoidalLayer

__all__ = [
    "Autoregressive",
    "AutoregressiveWaves",
    "Bijection",
    "Chain",
    "ColumnMap",
    "ElementwiseAffine",
    "ImageAffine",
    "ImageLDUBlock",
    "ImageShift",
    "LDUBlock",
    "Linear",
    "Log",
    "Logit",
    "LowerShift",
    "SinusoidalLayer",
    "UpperShift",
]


def __getattr__(name: str) -> Any:
    if name == "SinusoidalScale":
        warnings.warn("SinusoidalScale is called SinusoidalLayer", DeprecationWarning, stacklevel=2)
        return SinusoidalLayer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
