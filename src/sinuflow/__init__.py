"""Sinuflow: density estimation with the Sinusoidal Flow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError, DataError, InversionError, SinuflowError, StorageError, TrainingError

if TYPE_CHECKING:
    from . import testing
    from .bijections import Autoregressive, Chain
    from .flows.flow import Flow
    from .flows.sinusoidal import ImageFlow, SinusoidalFlow
    from .models.image import ImageModel
    from .models.image_fitting import fit_images
    from .models.loading import load
    from .models.table import TableModel
    from .models.table_fitting import fit_table
    from .registry import register
    from .solvers import Inversion
    from .training import FitResult, fit

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "Autoregressive", "Chain", "DataError", "FitResult", "Flow", "ImageFlow", "ImageModel",
    "Inversion", "InversionError", "SinuflowError", "SinusoidalDensity", "SinusoidalFlow", "StorageError", "TableModel",
    "TrainingError", "__version__", "fit", "fit_images", "fit_table", "load", "register", "testing",
]  # fmt: skip

# PyTorch takes a second to import, and in that second the command line must already handle signals. So the public names
# are imported when they are first used.
_MODULES = {
    "Autoregressive": "bijections",
    "Chain": "bijections",
    "FitResult": "training",
    "Flow": "flows.flow",
    "ImageFlow": "flows.sinusoidal",
    "ImageModel": "models.image",
    "Inversion": "solvers",
    "SinusoidalDensity": "models.estimator",
    "SinusoidalFlow": "flows.sinusoidal",
    "TableModel": "models.table",
    "fit": "training",
    "fit_images": "models.image_fitting",
    "fit_table": "models.table_fitting",
    "load": "models.loading",
    "register": "registry",
}
#: Modules that are attributes of the package without being imported by name.
_SUBMODULES = {
    "bijections", "conditioners", "data", "errors", "flows", "models", "ops", "pixels", "solvers", "testing",
    "training", "transformers",
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
    # Tools that list the package also access every name, and the estimator needs an extra.
    return sorted({*globals(), *_MODULES, *_SUBMODULES} - {"SinusoidalDensity"})
