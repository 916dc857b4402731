"""Reproduce the figures and tables of the paper, with a JSON record of how each result was obtained."""

from .items import ITEMS, Item, Options, reproduce
from .record import Result

__all__ = ["ITEMS", "Item", "Options", "Result", "reproduce"]
