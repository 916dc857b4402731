"""Fitted tables: from a file to a model that scores and samples in the file's own units."""

from .fitting import fit_table
from .model import TableModel

__all__ = ["TableModel", "fit_table"]
