"""The figures and tables of the paper, each as one run: pictures, tables, and a record of how they came about."""

from .items import ITEMS, Item, Options, reproduce
from .record import Figure

__all__ = ["ITEMS", "Figure", "Item", "Options", "reproduce"]
