"""Monotone scalar maps z = τ(x; h), one for each feature."""

from .affine import Affine, Shift
from .base import Transformer
from .waves import ConditionalWaves

__all__ = ["Affine", "ConditionalWaves", "Shift", "Transformer"]
