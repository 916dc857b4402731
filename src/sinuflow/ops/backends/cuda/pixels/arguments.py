"""The arguments of the PixelCNN's kernels, as the structures of the same names in the CUDA sources."""

from __future__ import annotations

import ctypes

from ..arguments import Arguments

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


class PixelForwardArguments(Arguments):
    """Of pixel_forward, pixel_check and pixel_learn."""

    _fields_ = (
        ("x", _POINTER),
        ("weights", _POINTER),
        ("biases", _POINTER),
        ("added", _POINTER),
        ("told", _POINTER),
        ("kept", _POINTER),
        ("largest", _POINTER),
        ("batch", _INT),
        ("reverse", _INT),
    )


class PixelFineArguments(PixelForwardArguments):
    """Of pixel_fine_forward and pixel_fine_check."""

    doubles = ("x", "told")


class PixelBackwardArguments(Arguments):
    """Of pixel_backward."""

    _fields_ = (
        ("grad", _POINTER),
        ("x", _POINTER),
        ("kept", _POINTER),
        ("weights", _POINTER),
        ("grad_x", _POINTER),
        ("parts", _POINTER),
        ("batch", _INT),
        ("reverse", _INT),
    )


class PixelInverseArguments(Arguments):
    """Of pixel_inverse."""

    _fields_ = (
        ("z", _POINTER),
        ("matrices", _POINTER),
        ("biases", _POINTER),
        ("added", _POINTER),
        ("x", _POINTER),
        ("batch", _INT),
    )


class PixelFineInverseArguments(PixelInverseArguments):
    """Of pixel_fine_inverse."""

    doubles = ("z", "x")


class PixelPackArguments(Arguments):
    """Of pixel_pack."""

    _fields_ = (
        ("parameters", _POINTER),
        ("source", _POINTER),
        ("packed", _POINTER),
        ("count", _INT),
        ("rough", _INT),
    )


class PixelSumArguments(Arguments):
    """Of pixel_sum."""

    _fields_ = (
        ("parts", _POINTER),
        ("to", _POINTER),
        ("gradient", _POINTER),
        ("rows", _INT),
        ("columns", _INT),
    )
