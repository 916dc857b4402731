"""Splitting batches that do not fit in GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


def split_if_out_of_memory(method: Method) -> Method:
    """Decorate a chain's method: when memory runs out, it halves the batch until the parts fit, down to one row.

    The method takes feature-major rows (D, B) and their context (C, B) or None, and returns tensors whose last
    dimension is that of the rows, or tuples of such. Rows do not depend on each other, so parts give the same results
    up to rounding. The error is raised unchanged if gradients are needed, because the autograd graph of all parts would
    need the same memory, and during CUDA-graph capture, because an error invalidates the capture.
    """

    @wraps(method)
    def split(chain: Any, x: Tensor, context: Tensor | None, *options: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(chain, x, context, *options)
        rows = size = x.shape[-1]
        start, parts = 0, list[Any]()
        while start < rows or not parts:
            try:
                if size == rows:
                    return method(chain, x, context, *options)
                part = slice(start, start + size)
                part_context = None if context is None else context[:, part]
                parts.append(method(chain, x[:, part], part_context, *options))
                start += size
            except torch.OutOfMemoryError:
                capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
                if size <= 1 or capturing or chain._needs_gradients(x, context):
                    raise
                size = -(-size // 2)
        return concatenated(parts)

    return cast(Method, split)


def concatenated(parts: list[Any]) -> Any:
    """The results of parts of a batch, as one: tensors whose last dimension is that of the rows, or tuples of such."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts, dim=-1)
    fields = (concatenated(list(each)) for each in zip(*parts, strict=True))
    return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
