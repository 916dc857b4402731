"""Training: the loop, its schedules and its checkpoints."""

from ..data.arrow_rows import ArrowRows
from ..data.image_rows import ImageRows
from ..data.sources import Batch, MemoryRows, RowSource
from .fit import FitResult, fit
from .schedules import Plateau

__all__ = ["ArrowRows", "Batch", "FitResult", "ImageRows", "MemoryRows", "Plateau", "RowSource", "fit"]
