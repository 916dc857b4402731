"""Fused kernels in Triton, which comes with PyTorch on Linux.

Each kernel does in one launch what the plain reference does in dozens, because on a GPU a small
flow spends its time on launches. A program takes a tile: all features of a few rows.
Import a module of this package only where :func:`sinuflow.ops.select.use_triton` says so.
"""
