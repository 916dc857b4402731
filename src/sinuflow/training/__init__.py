"""Training: the loop, its schedules and its checkpoints."""

from .arrow import ArrowRows
from .fit import FitResult, fit
from .image_rows import ImageRows
from .schedules import Plateau
from .sources import Batch, MemoryRows, RowSource

__all__ = ["ArrowRows", "Batch", "FitResult", "ImageRows", "MemoryRows", "Plateau", "RowSource", "fit"]
