"""Sources of training rows, and hashes that identify them.

The order of an epoch's batches depends on the seed and the epoch's number alone. So the position in the data is two
integers, and an interrupted run resumes with the very batches that it would have seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, TrainingError

#: Values that are encoded at a time on a GPU.
_VALUES = 2**24
#: Rows that are hashed at a time, and from how many on hashing takes long enough to be announced.
_ROWS, _MANY = 65_536, 5_000_000
#: The rows of a table by which a report recognizes it.
CONTENT_ROWS = 1000


class Batch(NamedTuple):
    """Rows of shape (B, features), and their context of shape (B, context) if there is one."""

    x: Tensor
    context: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to the rows and to their context."""
        return Batch(function(self.x), None if self.context is None else function(self.context))


@runtime_checkable
class RowSource(Protocol):
    """Rows to train on."""

    rows: int  # their number

    def epoch(self, number: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        """The shuffled batches of one epoch, without the first ``skip`` of them."""

    def head(self, rows: int) -> Batch:
        """Rows to initialize a flow from: the same ones at every call."""

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All rows once, in order, the same at every call: for validation."""

    def to(self, device: torch.device) -> RowSource:
        """The source with its batches on a device."""


#: Makes a batch of the rows with these numbers, feature-major: x of shape (features, B).
Taker = Callable[[Tensor], Batch]
#: Encodes raw rows and their context on the device that they are on; may draw noise from the generator.
Encoder = Callable[[Tensor, Tensor | None, torch.Generator], Batch]


class ResidentRows:
    """A source that selects rows by their numbers, if possible on the device; subclasses define ``_batch``.

    ``raw`` are the rows before encoding, ``device`` is that of the batches.
    """

    def __init__(self, raw: Batch, device: torch.device) -> None:
        self.rows, self.device, self._raw = len(raw.x), device, raw

    def epoch(self, number: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
        order, size = self.start_epoch(number, seed), min(batch_size, self.rows)
        for i in range(skip, self.rows // size):
            part = order[i * size : (i + 1) * size]
            yield self._batch(part, seeded(seed, number, i, device=self.device), training=True)

    def start_epoch(self, number: int, seed: int) -> Tensor:
        """The order of an epoch's rows, on the device; called before the epoch's first batch."""
        return torch.randperm(self.rows, generator=seeded(seed, number)).to(self._raw.x.device)

    def taker(self) -> Taker | None:
        """Makes batches on the device, so that a CUDA graph can capture it; None if the rows are not there."""
        raise NotImplementedError

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for rows in torch.arange(self.rows).split(batch_size):
            yield self._batch(rows, seeded(0, int(rows[0])))

    def raw(self) -> Iterator[Tensor]:
        """The rows before encoding, then their context."""
        return (t for t in self._raw if t is not None)

    def _batch(self, rows: Tensor, generator: torch.Generator, training: bool = False) -> Batch:
        raise NotImplementedError


class MemoryRows(ResidentRows):
    """Rows that are held in memory, or in that of a GPU if they fit there.

    With ``encode``, the dequantization noise of a row is fresh in every epoch. On a CPU, every batch is encoded by
    itself. On a GPU, all rows are encoded when an epoch starts: an epoch takes each row at most once, so the noise is
    as independent, and a training step costs no more than one with rows that need no encoding.

    Args:
        x: rows of shape (n, features).
        context: of shape (n, context).
        encode: applied to raw rows, on the training device.
        device: of the batches.
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
        super().__init__(Batch(x, context), x.device if device is None else device)
        self.identity, self._encode = identity, encode
        self._resident: Batch | None = None  # encoded and feature-major

    def start_epoch(self, number: int, seed: int) -> Tensor:
        if self._resident is not None and self._encode is not None:
            self._fill(self._resident, seeded(seed, number, 0, device=self.device))
        return super().start_epoch(number, seed)

    def taker(self) -> Taker | None:
        if self._raw.x.device != self.device:
            return None
        if self._resident is None:
            self._resident = self.head(1).map(lambda t: t.new_empty((t.shape[1], self.rows)))
            if self._encode is None:
                self._fill(self._resident, seeded(0))
        resident = self._resident
        return lambda rows: resident.map(lambda t: t.index_select(1, rows))

    def head(self, rows: int) -> Batch:
        return self._batch(slice(0, rows), seeded(0))

    def to(self, device: torch.device) -> MemoryRows:
        fit = self._encode is None or device.type != "cuda"
        if not fit:  # raw and encoded rows may take half of the free memory
            fit = 2 * sum(t.nbytes for t in self.raw()) <= torch.cuda.mem_get_info(device)[0] / 2
        raw = self._raw.map(lambda t: t.to(device)) if fit else self._raw
        return MemoryRows(*raw, self._encode, raw.x.device if fit else device, self.identity)

    def _batch(self, rows: Tensor | slice, generator: torch.Generator, training: bool = False) -> Batch:
        return make_batch(self._raw.map(lambda t: t[rows]), self._encode, generator, self.device)

    def _fill(self, resident: Batch, generator: torch.Generator) -> None:
        """Encode all rows into the resident tensors, whose memory a captured step reads."""
        size = max(1, _VALUES // self._raw.x.shape[1])
        for start in range(0, self.rows, size):
            part = slice(start, start + size)
            for whole, values in zip(resident, self._batch(part, generator), strict=True):
                if whole is not None and values is not None:
                    whole[:, part] = values.mT


class Batches:
    """The training batches of all epochs, from any position on."""

    def __init__(self, source: RowSource, size: int, seed: int) -> None:
        self.source, self.size, self.seed = source, size, seed
        #: The epoch, and the number of its batches that were used.
        self.position = (0, 0)
        self._epoch: Iterator[Batch] = iter(())
        self._epoch_position = (-1, 0)

    def next(self) -> Batch:
        """The batch at the position, or the first one of the next epoch."""
        number, used = self.position
        for position in ((number, used), (number + 1, 0)):
            if position != self._epoch_position:
                self._epoch = self.source.epoch(position[0], self.size, self.seed, skip=position[1])
            batch = next(self._epoch, None)
            if batch is not None:
                self.position = self._epoch_position = (position[0], position[1] + 1)
                return batch
        raise TrainingError("the training data have no rows")


def make_batch(raw: Batch, encode: Encoder | None, generator: torch.Generator, device: torch.device) -> Batch:
    """A batch of raw rows, moved to a device and encoded there."""
    raw = raw.map(lambda t: t.to(device))
    return raw if encode is None else encode(*raw, generator)


def seeded(*numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for this combination of integers, unlike that for any other."""
    seed = int(np.random.SeedSequence([n % 2**32 for n in numbers]).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(seed >> 1)


def as_source(data: Any, features: int, context: int, dtype: torch.dtype, name: str) -> RowSource:
    """A source from a tensor, an array, a frame, an Arrow dataset, or a pair of rows and context."""
    if isinstance(data, RowSource):
        return data
    if type(data).__module__.startswith("pyarrow") and hasattr(data, "scanner"):
        from .arrow_rows import ArrowRows

        return ArrowRows(data, features, context, dtype=dtype)
    x, side = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    rows = _finite_rows(x, dtype, name)
    if rows.shape[1] != features:
        raise ArgumentError(f"{name} must have {features} columns, as the flow has features; got {rows.shape[1]}")
    if not len(rows):
        raise ArgumentError(f"{name} has no rows")
    if context == 0:
        if side is not None:
            raise ArgumentError(
                f"{name} comes with a context, but no layer of the flow takes one: "
                f"build them with context={_columns(side)}"
            )
        return MemoryRows(rows)
    if side is None:
        raise ArgumentError(f"the flow is conditional: {name} must be a pair (x, context)")
    side = _finite_rows(side, dtype, f"the context of {name}")
    if side.shape != (len(rows), context):
        raise ArgumentError(f"the context of {name} must have shape ({len(rows)}, {context}); got {tuple(side.shape)}")
    return MemoryRows(rows, side)


def _columns(data: Any) -> int:
    shape = np.shape(data)
    return shape[1] if len(shape) > 1 else 1


def _finite_rows(data: Any, dtype: torch.dtype, name: str) -> Tensor:
    """The data as a matrix of finite numbers."""
    if not isinstance(data, Tensor):
        array = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
        if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
            raise ArgumentError(f"{name} must be numeric; got {array.dtype}. For tables with text, use `sinuflow fit`")
        data = torch.from_numpy(np.array(array, dtype=np.float64))
    rows: Tensor = data.detach().to(dtype)
    if rows.dim() != 2:
        raise ArgumentError(f"{name} must have two dimensions, rows and columns; got shape {tuple(rows.shape)}")
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise ArgumentError(f"{name} is NaN or infinite in {int((~finite).sum())} rows, the first of them row {first}")
    return rows


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
    return hash_tensors(
        raw() if raw else (part for batch in source.in_order(_ROWS) for part in batch if part is not None)
    )


def fingerprint_of_head(source: RowSource) -> str:
    """The hash by which version 0.1.0 identified its data: that of the first 256 rows, encoded."""
    return hash_tensors(part for part in source.head(256) if part is not None)[:16]


def content_hash(numbers: np.ndarray) -> str:
    """A hash of a table's first rows, whatever the file is called."""
    return hash_tensors([torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))])[:32]


def hash_tensors(pieces: Iterable[Tensor]) -> str:
    """A hash of the values of tensors."""
    digest = hashlib.sha256()
    for piece in pieces:
        for rows in piece.split(_ROWS):
            if rows.numel():
                digest.update(rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
