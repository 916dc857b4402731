"""Triton's interpreter, without work that it repeats for every call."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from tests.untraced import untraced

_seen: set[Any] = set()
_launch_any = interpreter.GridExecutor.__call__
_broadcast_any = TritonSemantic.broadcast_impl_value
_numpy_type = lru_cache(maxsize=None)(interpreter._get_np_dtype)


def speed_up() -> None:
    """Replace functions that take most of the time of a kernel by faster ones with the same results."""
    interpreter.InterpretedFunction.__call__ = _call_device_function
    interpreter._get_np_dtype = _element_type
    TritonSemantic.broadcast_impl_value = _broadcast
    interpreter.GridExecutor.__call__ = _launch


def _launch(self: interpreter.GridExecutor, *args: Any, **kwargs: Any) -> None:
    """Let coverage see a kernel the first time that it is launched with these flags: it doubles the time."""
    flags = tuple(value for value in kwargs.values() if isinstance(value, int) and value <= 2)
    with untraced() if (self.fn, flags) in _seen else nullcontext():
        _launch_any(self, *args, **kwargs)
    _seen.add((self.fn, flags))


def _call_device_function(self: interpreter.InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    # Triton's own replaces all of triton.language every time. The launch of the kernel has done so already, but
    # for what Triton's own library sees: that is replaced once, and stays so.
    if tl.core.is_builtin(tl.core.full):
        interpreter._patch_lang(tl.zeros.fn)
    return self.rewrite()(*args, **kwargs)


def _element_type(kind: tl.dtype) -> np.dtype[Any]:
    # Triton's own version rebuilds its table of types in every call.
    return np.dtype(np.uint64) if isinstance(kind.scalar, tl.pointer_type) else _numpy_type(kind.scalar)


def _broadcast(self: TritonSemantic, one: tl.tensor, other: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    # Triton's own makes new tensors also of those that have the same shape already.
    if one.type.is_block() and other.type.is_block() and one.type.shape.values == other.type.shape.values:
        return one, other
    return _broadcast_any(self, one, other)
