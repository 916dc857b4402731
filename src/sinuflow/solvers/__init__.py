"""Root finding and inversion, independent of networks; every result carries its residual."""

from .bracketed import bracketed_newton
from .fixed_point import fixed_point
from .newton import newton
from .options import SolverOptions
from .result import Inversion, MonotoneFunction, Root
from .substitution import Step, substitute
from .sweeps import parallel_sweeps

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
