"""Sinuflow: density estimation with the Sinusoidal Flow."""

from typing import Any

from .errors import ArgumentError, DataError, InversionError, SinuflowError, StorageError, TrainingError
from .flow import SinusoidalFlow
from .images import ImageModel, fit_images
from .inversion import Inversion
from .loading import load
from .tables import TableModel, fit_table
from .training import FitResult, fit

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "DataError",
    "FitResult",
    "ImageModel",
    "Inversion",
    "InversionError",
    "SinuflowError",
    "SinusoidalDensity",
    "SinusoidalFlow",
    "StorageError",
    "TableModel",
    "TrainingError",
    "__version__",
    "fit",
    "fit_images",
    "fit_table",
    "load",
]


def __getattr__(name: str) -> Any:
    # scikit-learn is an extra: only who asks for the estimator needs it.
    if name == "SinusoidalDensity":
        from .estimator import SinusoidalDensity

        return SinusoidalDensity
    raise AttributeError(f"module 'sinuflow' has no attribute {name!r}")
