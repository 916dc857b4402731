"""Fused kernels in Triton, which comes with PyTorch on Linux.

Each kernel replaces dozens of launches of the reference by one. A program takes a tile: all features of a few rows.
Import these modules only where :func:`sinuflow.ops.select.use_triton` is true.
"""
