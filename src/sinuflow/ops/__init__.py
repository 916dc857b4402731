"""Numerical primitives: references in PyTorch, and fused kernels.

All tensors are feature-major, (D, B) for B rows with D features: the values of a feature are contiguous, its parameters
broadcast along the fast axis, and the units of a masked network that depend on the same features are consecutive rows.
"""
