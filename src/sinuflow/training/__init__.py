"""Training: the loop, its schedules and its checkpoints."""

from .arrow import ArrowRows
from .fit import FitResult, fit
from .sources import Batch, MemoryRows, RowSource

__all__ = ["ArrowRows", "Batch", "FitResult", "MemoryRows", "RowSource", "fit"]
