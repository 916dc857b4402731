"""Monotone scalar maps z = τ(x; h), one for each feature."""

from .affine import Affine
from .base import Transformer
from .shift import Shift
from .waves import ConditionalWaves

__all__ = ["Affine", "ConditionalWaves", "Shift", "Transformer"]
