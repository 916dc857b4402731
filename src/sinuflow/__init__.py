"""Sinuflow: density estimation with the Sinusoidal Flow."""

from .errors import ArgumentError, DataError, InversionError, SinuflowError, StorageError, TrainingError
from .flow import SinusoidalFlow
from .inversion import Inversion
from .loading import load
from .training import FitResult, fit

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "DataError",
    "FitResult",
    "Inversion",
    "InversionError",
    "SinuflowError",
    "SinusoidalFlow",
    "StorageError",
    "TrainingError",
    "__version__",
    "fit",
    "load",
]
