"""Bijections z = T⁻¹(x), from data to noise, with exact log-determinants and certified inverses."""

from .affine import ElementwiseAffine
from .autoregressive import AutoregressiveWaves
from .base import Bijection, Certificate, Chain, LayerInverse
from .columns import ColumnMap, Log, Logit
from .ldu import LDUBlock
from .shift import LowerShift, UpperShift
from .sinusoidal import SinusoidalScale

__all__ = [
    "AutoregressiveWaves",
    "Bijection",
    "Certificate",
    "Chain",
    "ColumnMap",
    "ElementwiseAffine",
    "LDUBlock",
    "LayerInverse",
    "Log",
    "Logit",
    "LowerShift",
    "SinusoidalScale",
    "UpperShift",
]
