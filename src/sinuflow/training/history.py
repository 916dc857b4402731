"""The record of a run: one JSON object a line, and TensorBoard if wanted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..checks import fields, integer, number, optional
from ..errors import SinuflowError
from ..files import append, write_atomically

Record = dict[str, Any]

#: Schema of a record in a file: the step, and numbers that may be missing.
RECORD = fields({"step": integer()}, others=optional(number(finite=False)))


class History:
    """Records of a run, in memory and in files.

    Args:
        path: a JSONL file that gets a line at every record; none by default.
        tensorboard: a folder for TensorBoard's event files; none by default.
    """

    def __init__(self, path: Path | None = None, tensorboard: Path | None = None) -> None:
        self.records: list[Record] = []
        self._path = path
        self._board = None if tensorboard is None else _board(tensorboard)

    def start(self, records: list[Record]) -> None:
        """Begin with these records, and none of what a file may hold beyond them."""
        self.records = list(records)
        if self._path is not None:
            write_atomically(self._path, "".join(_line(record) for record in self.records).encode())

    def add(self, record: Record) -> None:
        """Add one record."""
        self.records.append(record)
        if self._path is not None:
            append(self._path, _line(record).encode())
        if self._board is not None:
            for name, value in record.items():
                if name != "step" and value is not None:
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush what is not yet written."""
        if self._board is not None:
            self._board.close()


def _line(record: Record) -> str:
    # JSON has no NaN: what is not a number is null.
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(clean) + "\n"


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SinuflowError("TensorBoard is not installed: pip install 'sinuflow[tensorboard]'") from None
    return SummaryWriter(str(folder))
