"""Tables: reading them, and reversible maps of their columns."""

from .columns import Column
from .preprocessing import Preprocessor
from .survey import Survey, survey
from .tables import Table, open_table

__all__ = ["Column", "Preprocessor", "Survey", "Table", "open_table", "survey"]
