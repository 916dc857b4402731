"""Telling training data from other data, by all of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .sources import RowSource

#: Rows that are hashed at a time.
_ROWS = 65_536
#: Rows that take long to read.
_MANY = 5_000_000
#: Rows whose batch was hashed by version 0.1.0.
_HEAD = 256


@runtime_checkable
class RawRows(Protocol):
    """A source that can show its rows as they were before any encoding.

    An encoding is floating-point arithmetic, and may come out differently on another machine or with another number of
    threads. What it was made from does not.
    """

    def raw(self) -> Iterator[Tensor]:
        """All rows in order, in pieces of any size."""


def fingerprint(source: RowSource, say: Callable[[str], None] = lambda _: None) -> str:
    """A hash of all rows of a source, in their order; or of its ``identity``, if that says what they are.

    ``say`` is told if reading them will take long.

    Example:
        >>> from sinuflow.training.sources import MemoryRows
        >>> x = torch.zeros(1000, 2)
        >>> before = fingerprint(MemoryRows(x))
        >>> x[999, 1] = 1.0
        >>> fingerprint(MemoryRows(x)) == before
        False
    """
    identity = getattr(source, "identity", None)
    if isinstance(identity, str) and identity:
        return hashlib.sha256(identity.encode()).hexdigest()
    if source.rows > _MANY:
        say("reading all rows once, so that a resumed run can tell them from others")
    digest = hashlib.sha256()
    if isinstance(source, RawRows):
        pieces = source.raw()
    else:
        pieces = (part for batch in source.in_order(_ROWS) for part in batch if part is not None)
    for piece in pieces:
        for rows in piece.split(_ROWS):
            _update(digest, rows)
    return digest.hexdigest()


def fingerprint_of_head(source: RowSource) -> str:
    """The hash by which version 0.1.0 knew its data again: that of the first batch, encoded."""
    digest = hashlib.sha256()
    for part in source.head(_HEAD):
        if part is not None:
            _update(digest, part)
    return digest.hexdigest()[:16]


def _update(digest: hashlib._Hash, rows: Tensor) -> None:
    if rows.numel():
        digest.update(rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
