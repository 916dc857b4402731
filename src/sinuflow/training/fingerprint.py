"""Hashes that identify training data by all of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..data.sources import RowSource

#: Rows that are hashed at a time.
_ROWS = 65_536
#: With more rows than this, hashing them takes long enough to be announced.
_MANY = 5_000_000
#: Size of the first batch, which version 0.1.0 hashed.
_HEAD = 256


@runtime_checkable
class RawRows(Protocol):
    """A source that gives access to its rows before encoding.

    An encoding is floating-point arithmetic, and may round differently on another machine or with another number of
    threads; raw rows do not depend on either.
    """

    def raw(self) -> Iterator[Tensor]:
        """All rows in order, in pieces of any size."""


def fingerprint(source: RowSource, say: Callable[[str], None] = lambda _: None) -> str:
    """A hash of all rows of a source, in order, or of its ``identity`` if it has one.

    ``say`` receives a message if hashing takes long.

    Example:
        >>> from sinuflow.data.sources import MemoryRows
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
        say("hashing all rows, so that a resumed run can detect other data")
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
    """The hash by which version 0.1.0 identified its data: that of the first batch, encoded."""
    digest = hashlib.sha256()
    for part in source.head(_HEAD):
        if part is not None:
            _update(digest, part)
    return digest.hexdigest()[:16]


def _update(digest: hashlib._Hash, rows: Tensor) -> None:
    if rows.numel():
        digest.update(rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
