"""Sinuflow: density estimation with the Sinusoidal Flow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError, DataError, InversionError, SinuflowError, StorageError, TrainingError

if TYPE_CHECKING:
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

# PyTorch takes a second to import, and in that second the command line must already handle signals. So the public names
# are imported when they are first used.
_MODULES = {
    "FitResult": "training",
    "ImageModel": "images",
    "Inversion": "inversion",
    "SinusoidalDensity": "estimator",
    "SinusoidalFlow": "flow",
    "TableModel": "tables",
    "fit": "training",
    "fit_images": "images",
    "fit_table": "tables",
    "load": "loading",
}
#: Modules that are attributes of the package without being imported by name.
_SUBMODULES = {
    "bijections", "conditioners", "data", "distribution", "errors", "flow", "images", "inversion", "kernels", "loading",
    "pixels", "solvers", "storage", "tables", "training", "transform",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'sinuflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    # Whoever lists the package also looks at every name, and the estimator needs an extra.
    return sorted({*globals(), *_MODULES, *_SUBMODULES} - {"SinusoidalDensity"})
