"""Hashes that identify rows of data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from .sources import RowSource

#: Rows that are hashed at a time, and from how many on hashing takes long enough to be announced.
_ROWS, _MANY = 65_536, 5_000_000
#: The size of the first batch, which version 0.1.0 hashed.
_HEAD = 256
#: The rows of a table by which a report recognizes it.
CONTENT_ROWS = 1000


def fingerprint(source: RowSource, say: Callable[[str], None] = lambda _: None) -> str:
    """A hash of all rows of a source, in order, or of its ``identity`` if it has one.

    Rows are hashed before encoding if the source has a method ``raw``: an encoding may round differently on another
    machine or with another number of threads. ``say`` receives a message if hashing takes long.
    """
    identity = getattr(source, "identity", None)
    if isinstance(identity, str) and identity:
        return hashlib.sha256(identity.encode()).hexdigest()
    if source.rows > _MANY:
        say("hashing all rows, so that a resumed run can detect other data")
    raw = getattr(source, "raw", None)
    return _hash(raw() if raw else (part for batch in source.in_order(_ROWS) for part in batch if part is not None))


def fingerprint_of_head(source: RowSource) -> str:
    """The hash by which version 0.1.0 identified its data: that of the first batch, encoded."""
    return _hash(part for part in source.head(_HEAD) if part is not None)[:16]


def content_hash(numbers: np.ndarray) -> str:
    """A hash of a table's first rows, whatever the file is called."""
    return _hash([torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))])[:32]


def _hash(pieces: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        for rows in piece.split(_ROWS):
            if rows.numel():
                digest.update(rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
