"""The trial that new kernels are put to before anybody relies on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from ..kernels.cuda.compiler import CompilerError


def trusted(trial: Callable[[], bool], told: str, failure: type[Exception] = CompilerError) -> bool:
    """Whether kernels can be compiled and pass a trial; if not, the user is warned.

    ``told``: what they did wrong; ``failure``: what it looks like if they cannot be compiled.
    """
    try:
        passed = trial()
    except failure as error:
        warnings.warn(f"the GPU's kernels cannot be used, and others will be: {error}", stacklevel=3)
        return False
    if not passed:
        warnings.warn(
            f"the GPU's kernels {told}: please report this, with the output of `sinuflow info --devices`", stacklevel=3
        )
    return passed
