"""Root finding that knows nothing of flows: every solver says how far off it ended."""

from .fixed_point import fixed_point
from .newton import newton
from .options import SolverOptions
from .result import MonotoneFunction, Root
from .sweeps import parallel_sweeps
from .triangular import MaskedNetwork, ordered_adjoint, ordered_substitution

__all__ = [
    "MaskedNetwork",
    "MonotoneFunction",
    "Root",
    "SolverOptions",
    "fixed_point",
    "newton",
    "ordered_adjoint",
    "ordered_substitution",
    "parallel_sweeps",
]
