"""Sinuflow: density estimation with the Sinusoidal Flow."""

from .errors import ArgumentError, InversionError, SinuflowError, StorageError
from .flow import SinusoidalFlow
from .inversion import Inversion
from .loading import load

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Inversion",
    "InversionError",
    "SinuflowError",
    "SinusoidalFlow",
    "StorageError",
    "__version__",
    "load",
]
