"""The trial that new kernels are put to before anybody relies on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from .backends.cuda.compiler import CompilerError


def trusted(trial: Callable[[], bool], told: str, *failures: type[Exception]) -> bool:
    """Whether kernels can be compiled and pass a trial; if not, the user is warned.

    ``told``: what they did wrong; ``failures``: what it looks like if they cannot be compiled, or do not run; a
    :class:`~sinuflow.ops.backends.cuda.compiler.CompilerError` always does.
    """
    caught: tuple[type[Exception], ...] = (CompilerError, *failures)
    try:
        passed = trial()
    except torch.OutOfMemoryError:  # it says nothing about the kernels
        raise
    except caught as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"the GPU's kernels cannot be used, and others will be: {said}", stacklevel=3)
        return False
    if not passed:
        warnings.warn(
            f"the GPU's kernels {told}: please report this, with the output of `sinuflow info --devices`", stacklevel=3
        )
    return passed
