"""An HTML report on the quality of a fitted density: one self-contained page."""

from .page import render, write

__all__ = ["render", "write"]
