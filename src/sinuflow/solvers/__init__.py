"""Root finding and inversion, independent of networks; every result carries its residual."""

from .options import SolverOptions
from .result import Inversion, Root
from .scalar import MonotoneFunction, bracketed_newton, fixed_point, newton
from .triangular import Step, parallel_sweeps, substitute

__all__ = [
    "Inversion",
    "MonotoneFunction",
    "Root",
    "SolverOptions",
    "Step",
    "bracketed_newton",
    "fixed_point",
    "newton",
    "parallel_sweeps",
    "substitute",
]
