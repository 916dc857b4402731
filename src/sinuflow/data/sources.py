"""Where training rows come from.

A source hands out the batches of an epoch in an order that depends on nothing but a seed and the
epoch's number. So the position in the data is two whole numbers, and a run that was interrupted
goes on with the very batches that it would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError


class Batch(NamedTuple):
    """Rows of shape (B, features), and their context of shape (B, context) if there is one."""

    x: Tensor
    context: Tensor | None


@runtime_checkable
class RowSource(Protocol):
    """Anything that can be trained on."""

    #: How many rows there are.
    rows: int

    def epoch(self, number: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        """The shuffled batches of one epoch, without the first ``skip`` of them."""

    def head(self, rows: int) -> Batch:
        """Some rows to look at and to initialise from: the same ones at every call."""

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All rows once, in order, the same at every call: for validation."""

    def to(self, device: torch.device) -> RowSource:
        """The source with its batches on a device."""


#: Makes a batch of the rows with these numbers, feature-major: x of shape (features, B).
Taker = Callable[[Tensor], Batch]


@runtime_checkable
class ResidentRows(Protocol):
    """A source that is on one device, and can make batches there without asking the host for anything."""

    #: How many rows there are.
    rows: int

    def order(self, number: int, seed: int) -> Tensor:
        """The order in which an epoch takes the rows, on the device."""

    def taker(self) -> Taker | None:
        """What makes batches on the device; what it draws comes from the default generator. None if it cannot."""


#: Turns raw rows into what the flow sees; may draw from the generator, as dequantisation does.
Encoder = Callable[[Tensor, Tensor | None, torch.Generator], Batch]


class MemoryRows:
    """Rows that are held in memory.

    Args:
        x: rows of shape (n, features).
        context: of shape (n, context).
        encode: applied to every batch.
        identity: identifies these rows and ``encode``, so that a resumed run need not hash all rows.
    """

    def __init__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        encode: Encoder | None = None,
        device: torch.device | None = None,
        identity: str = "",
    ) -> None:
        self.rows, self.identity = len(x), identity
        self._x, self._context, self._encode, self._device = x, context, encode, device

    def epoch(self, number: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        order = self.order(number, seed)
        size = min(batch_size, self.rows)
        for i in range(skip, self.rows // size):
            yield self._batch(order[i * size : (i + 1) * size], seeded(seed, number, i))

    def order(self, number: int, seed: int) -> Tensor:
        """The order in which an epoch takes the rows."""
        return torch.randperm(self.rows, generator=seeded(seed, number)).to(self._x.device)

    def taker(self) -> Taker | None:
        """What takes rows as they are; None if they have to be encoded first, which the host does."""
        if self._encode is not None:
            return None
        x, context = self._x.mT.contiguous(), None if self._context is None else self._context.mT.contiguous()

        def take(rows: Tensor) -> Batch:
            return Batch(x.index_select(1, rows), None if context is None else context.index_select(1, rows))

        return take

    def head(self, rows: int) -> Batch:
        return self._batch(slice(0, rows), seeded(0))

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for start in range(0, self.rows, batch_size):
            yield self._batch(slice(start, start + batch_size), seeded(0, start))

    def raw(self) -> Iterator[Tensor]:
        """The rows as they are held, then their context."""
        yield self._x
        if self._context is not None:
            yield self._context

    def to(self, device: torch.device) -> MemoryRows:
        if self._encode is not None:  # it works on the CPU, and its results are moved
            return MemoryRows(self._x, self._context, self._encode, device, self.identity)
        context = None if self._context is None else self._context.to(device)
        return MemoryRows(self._x.to(device), context)

    def _batch(self, rows: Tensor | slice, generator: torch.Generator) -> Batch:
        x = self._x[rows]
        context = None if self._context is None else self._context[rows]
        if self._encode is None:
            return Batch(x, context)
        encoded, side = self._encode(x, context, generator)
        return Batch(encoded.to(self._device), None if side is None else side.to(self._device))


def seeded(*numbers: int) -> torch.Generator:
    """A generator for this combination of numbers, unlike that for any other."""
    seed = int(np.random.SeedSequence([n % 2**32 for n in numbers]).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(seed >> 1)


def as_source(data: Any, features: int, context: int, dtype: torch.dtype, name: str) -> RowSource:
    """A source from what users have: a tensor, an array, a frame, an Arrow dataset, or a pair with context."""
    if isinstance(data, RowSource):
        return data
    if _is_arrow_dataset(data):
        from .arrow_rows import ArrowRows

        return ArrowRows(data, features, context, dtype=dtype)
    x, given = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    rows = _numbers(x, dtype, name)
    if rows.shape[1] != features:
        raise ArgumentError(f"{name} must have {features} columns, as the flow has features; got {rows.shape[1]}")
    if not len(rows):
        raise ArgumentError(f"{name} has no rows")
    if context == 0:
        if given is not None:
            raise ArgumentError(f"{name} comes with a context, but the flow was built with context=0")
        return MemoryRows(rows)
    if given is None:
        raise ArgumentError(f"the flow is conditional: {name} must be a pair (x, context)")
    side = _numbers(given, dtype, f"the context of {name}")
    if side.shape != (len(rows), context):
        raise ArgumentError(f"the context of {name} must have shape ({len(rows)}, {context}); got {tuple(side.shape)}")
    return MemoryRows(rows, side)


def _is_arrow_dataset(data: Any) -> bool:
    return type(data).__module__.startswith("pyarrow") and hasattr(data, "scanner")


def _numbers(data: Any, dtype: torch.dtype, name: str) -> Tensor:
    """The data as a matrix of finite numbers."""
    if not isinstance(data, Tensor):
        array = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
        if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
            raise ArgumentError(f"{name} must be numeric; got {array.dtype}. For tables with text, use `sinuflow fit`")
        data = torch.from_numpy(np.array(array, dtype=np.float64))
    numbers: Tensor = data.detach().to(dtype)
    if numbers.dim() != 2:
        raise ArgumentError(f"{name} must have two dimensions, rows and columns; got shape {tuple(numbers.shape)}")
    finite = numbers.isfinite().all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise ArgumentError(f"{name} is NaN or infinite in {int((~finite).sum())} rows, the first of them row {first}")
    return numbers
