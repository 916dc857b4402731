"""Taking a batch in parts where a GPU has too little memory for all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


def split_if_out_of_memory(method: Method) -> Method:
    """Let a method of a chain take its batch in parts, of half the size whenever memory runs out, down to one row.

    The method takes feature-major rows (D, B) and their context (C, B) or None, and returns tensors whose last
    dimension is that of the rows, or tuples of such. Rows do not depend on each other, so parts give the same results
    up to rounding. Where gradients are wanted, the error is raised as it is: the graph of all parts would need the same
    memory. In a CUDA-graph capture it is, too, because a capture cannot be continued after an error.
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
                given = None if context is None else context[:, part]
                parts.append(method(chain, x[:, part], given, *options))
                start += size
            except torch.OutOfMemoryError:
                captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
                if size <= 1 or captured or chain._needs_gradients(x, context):
                    raise
                size = -(-size // 2)
        return _joined(parts)

    return cast(Method, split)


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts, dim=-1)
    if not isinstance(first, tuple):
        return first  # a name, which is the same for all rows
    joined = map(_joined, map(list, zip(*parts, strict=True)))
    return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)
