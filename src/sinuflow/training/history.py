"""The records of a run: in memory, as JSONL and for TensorBoard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..checks import fields, integer, number, optional
from ..errors import SinuflowError
from ..files import append, write_atomically

Record = dict[str, Any]

#: Schema of a stored record: the step, and numbers or null.
RECORD = fields({"step": integer()}, others=optional(number(finite=False)))


class History:
    """Records of a run, appended to a JSONL file and to TensorBoard's event files if their paths are given."""

    def __init__(self, path: Path | None = None, tensorboard: Path | None = None) -> None:
        self.records: list[Record] = []
        self._path = path
        self._board: Any = None
        if tensorboard is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise SinuflowError("TensorBoard is not installed: pip install 'sinuflow[tensorboard]'") from None
            self._board = SummaryWriter(str(tensorboard))

    def start(self, records: list[Record]) -> None:
        """Replace all records, in the file too."""
        self.records = list(records)
        if self._path is not None:
            write_atomically(self._path, "".join(map(_line, self.records)).encode())

    def add(self, record: Record) -> None:
        self.records.append(record)
        if self._path is not None:
            append(self._path, _line(record).encode())
        if self._board is not None:
            for name, value in record.items():
                if name != "step" and value is not None:
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _line(record: Record) -> str:
    return json.dumps(finite(record)) + "\n"


def finite(value: Any) -> Any:
    """A value for JSON, which has neither NaN nor infinity: they become None."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
