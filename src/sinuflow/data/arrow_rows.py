"""Rows of an Arrow dataset that need not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from .sources import Batch, Encoder, make_batch, seeded

#: Rows that are shuffled among each other at a time, and rows that are read at a time.
_BUFFER, _CHUNK = 262_144, 65_536


class ArrowRows:
    """Rows of an Arrow dataset, read in chunks and shuffled in a buffer.

    An epoch reads the files in a new random order, fills a buffer, and yields its rows in random order before it fills
    it again. The order depends on the seed and the epoch alone.

    Args:
        dataset: a ``pyarrow.dataset.Dataset``.
        features: the number of modelled columns; the ``context`` columns come after them.
        context: the number of columns that are conditioned on.
        columns: their names, in this order; all of the dataset's by default.
        dtype: of batches that are not encoded.
        encode: applied to every batch, on the training device.
        identity: identifies these rows and ``encode``, so that a resumed run need not hash all rows.
        to_numbers: from a record batch to an array (rows, features + context), if they are not all numbers.
        keep: which rows to use, as booleans by row number; all by default.
        buffer: rows that are shuffled among each other.
    """

    def __init__(
        self,
        dataset: Any,
        features: int,
        context: int = 0,
        *,
        columns: list[str] | None = None,
        dtype: torch.dtype = torch.float32,
        encode: Encoder | None = None,
        identity: str = "",
        to_numbers: Callable[[Any], np.ndarray] | None = None,
        keep: np.ndarray | None = None,
        buffer: int = _BUFFER,
    ) -> None:
        self._dataset = dataset
        self._columns = list(dataset.schema.names) if columns is None else columns
        if to_numbers is None and len(self._columns) != features + context:
            raise ArgumentError(
                f"the dataset must have {features + context} columns, the flow's features and context; "
                f"got {len(self._columns)}"
            )
        self._features, self._context = features, context
        self._encode = encode or (lambda x, context, _: Batch(x, context).map(lambda t: t.to(dtype)))
        self._to_numbers = _numeric_columns if to_numbers is None else to_numbers
        self._keep, self._buffer, self.identity = keep, buffer, identity
        self._device = torch.device("cpu")
        # Row numbers are those of the dataset's own order, whatever order an epoch reads it in.
        self._fragments = list(dataset.get_fragments())
        counts = [fragment.count_rows() for fragment in self._fragments]
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self.rows = int(self._starts[-1] if keep is None else keep.sum())
        if not self.rows:
            raise ArgumentError("the dataset has no rows to train on")

    def epoch(self, number: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        generator = seeded(seed, number)
        order = torch.randperm(len(self._fragments), generator=generator).tolist()
        size = min(batch_size, self.rows)
        count, rest = 0, torch.empty(0, self._features + self._context, dtype=torch.float64)
        for block in self._blocks(order, self._buffer):
            rows = torch.cat([rest, block])
            rows = rows[torch.randperm(len(rows), generator=generator)]
            whole = len(rows) // size * size
            for part in rows[:whole].split(size):
                if count >= skip:
                    yield self._batch(part, seeded(seed, number, count, device=self._device))
                count += 1
            rest = rows[whole:]

    def head(self, rows: int) -> Batch:
        first = next(self._blocks(range(len(self._fragments)), rows))
        return self._batch(first[:rows], seeded(0))

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        start = 0
        for chunk in self.raw():
            for part in chunk.split(batch_size):
                yield self._batch(part, seeded(0, start))
                start += len(part)

    def raw(self) -> Iterator[Tensor]:
        """All rows in order, before encoding."""
        return self._chunks(range(len(self._fragments)))

    def to(self, device: torch.device) -> ArrowRows:
        self._device = device
        return self

    def _blocks(self, order: Iterable[int], size: int) -> Iterator[Tensor]:
        """The rows of files, in blocks of at least a size but the last."""
        parts: list[Tensor] = []
        for chunk in self._chunks(order):
            parts.append(chunk)
            if sum(map(len, parts)) >= size:
                yield torch.cat(parts)
                parts = []
        if parts:
            yield torch.cat(parts)

    def _chunks(self, order: Iterable[int]) -> Iterator[Tensor]:
        for i in order:
            row = int(self._starts[i])
            for piece in self._fragments[i].to_batches(
                schema=self._dataset.schema, columns=self._columns, batch_size=_CHUNK, use_threads=False
            ):
                keep = slice(None) if self._keep is None else self._keep[row : row + len(piece)]
                row += len(piece)
                numbers = self._to_numbers(piece)[keep]
                if len(numbers):
                    yield torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))

    def _batch(self, rows: Tensor, generator: torch.Generator) -> Batch:
        raw = Batch(rows[:, : self._features], rows[:, self._features :] if self._context else None)
        return make_batch(raw, self._encode, generator, self._device)


def _numeric_columns(piece: Any) -> np.ndarray:
    numbers = np.stack([column.to_numpy(zero_copy_only=False) for column in piece.columns], axis=1).astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ArgumentError("the dataset holds missing or infinite values: remove those rows first")
    return numbers
