"""The tangent, in place, by whichever of two implementations is faster here.

On processors with AVX-512, NumPy's is about four times as fast as PyTorch's, to the same precision.
But it uses one core, so many threads are better off with PyTorch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

#: Below this size the way to NumPy costs as much as it saves.
_SMALL = 4096
#: Tensors up to this size PyTorch leaves to one thread as well.
_ONE_THREAD = 32768
#: How many times faster NumPy's tangent is where it has vector instructions for it.
_GAIN = 4


def tan_(angle: Tensor) -> Tensor:
    """Replace the angles of a contiguous tensor that needs no gradients by their tangents.

    Example:
        >>> tan_(torch.zeros(2))
        tensor([0., 0.])
    """
    size = angle.numel()
    worth_it = size >= _SMALL and (size <= _ONE_THREAD or torch.get_num_threads() < _GAIN)
    if not (worth_it and angle.device.type == "cpu" and numpy_is_faster()):
        return angle.tan_()
    array = angle.numpy()
    with np.errstate(invalid="ignore"):  # the tangent of an infinity is NaN, which is what is wanted
        np.tan(array, out=array)
    return angle


@lru_cache(maxsize=1)
def numpy_is_faster() -> bool:
    """Whether NumPy says that it has better than its baseline for tangents, which is AVX-512."""
    try:
        from numpy.lib.introspect import opt_func_info
    except ImportError:  # before NumPy 2
        return False
    kinds = opt_func_info(func_name="^tan$").get("tan", {})
    return bool(kinds) and all("baseline" not in kind["current"] for kind in kinds.values())
