"""Root finding that knows nothing of flows: every solver says how far off it ended."""

from .fixed_point import fixed_point
from .newton import newton
from .options import SolverOptions
from .result import MonotoneFunction, Root
from .sweeps import parallel_sweeps

__all__ = [
    "MonotoneFunction",
    "Root",
    "SolverOptions",
    "fixed_point",
    "newton",
    "parallel_sweeps",
]
