"""Reading safetensors files that may be damaged or malicious, in memory bounded by the file's size.

The file reader of safetensors maps files into memory, which crashes if one is truncated, and blocks on a named pipe. So
the file must be regular, and its bytes are read; its header is checked before safetensors parses it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .checks import fields, integer, items, one_of, text
from .errors import StorageError

#: The maximum number of tensors in a file.
MOST_TENSORS = 30_000
#: Maximum bytes of a header, and of the Python objects of the header and of JSON in its metadata.
_LARGEST_HEADER, _HEADER_MEMORY, _JSON_MEMORY = 32 << 20, 64 << 20, 40 << 20

_DTYPE = one_of("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64")
_ENTRY = fields({"dtype": _DTYPE, "shape": items(integer()), "data_offsets": items(integer(), length=2)})


def read_tensor_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file, or a :class:`~sinuflow.StorageError`."""
    try:
        nonblocking = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | nonblocking)) as file:
            kind = os.fstat(file.fileno())
            if not stat.S_ISREG(kind.st_mode):
                raise StorageError(f"cannot read {path}: it is not a file")
            return _read(file.read(kind.st_size))
    except OSError as error:
        known = {FileNotFoundError: "there is no such file", IsADirectoryError: "it is a folder"}
        raise StorageError(f"cannot read {path}: {known.get(type(error)) or error.strerror or error}") from error
    except (ValueError, RecursionError, SafetensorError) as error:
        raise StorageError(f"{path} is not a safetensors file, or is damaged: {error}") from error
    except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter when memory runs out
        raise StorageError(f"cannot read {path}: there is not enough memory for it") from error


def parse_json(document: str) -> Any:
    """Parse JSON; raises a ValueError if it is invalid or would take too much memory.

    Example:
        >>> parse_json('{"blocks": 3}')
        {'blocks': 3}
    """
    wide = 3 if "\\ud" in document.lower() else 1 if "\\u" in document else 0  # more bytes per character
    if _memory(document) + wide * len(document) > _JSON_MEMORY:
        raise ValueError("its description is too large")
    try:
        return json.loads(document)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read(data: bytes) -> tuple[dict[str, str], dict[str, Tensor]]:
    if sys.byteorder != "little":
        raise ValueError("safetensors files need a little-endian machine")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, _LARGEST_HEADER):
        raise ValueError("its header has an impossible length")
    return _metadata(data[8 : 8 + length]), load(data)


def _metadata(raw: bytes) -> dict[str, str]:
    """The metadata of a header, whose entries are checked before any is read."""
    if not raw.isascii() or re.search(rb"(?<!\\)(?:\\\\)*\\u", raw):
        raise ValueError("its header is not plain ASCII")
    if raw.count(b'"data_offsets"') > MOST_TENSORS:
        raise ValueError(f"it has more than {MOST_TENSORS:,} tensors")
    document = raw.decode("ascii")
    if _memory(document) > _HEADER_MEMORY:
        raise ValueError("its header is too large")
    header = json.loads(document)
    fields({}, {"__metadata__": fields({}, others=text(_LARGEST_HEADER))}, others=_ENTRY)(header, "header")
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def _memory(document: str) -> int:
    """The approximate memory of JSON's Python objects."""
    objects, lists, commas, colons = map(document.count, "{[,:")
    # A list takes 64 bytes and an object 160, each entry 44, and a name in an object 48, or more if names are many.
    return 160 * objects + 64 * lists + 44 * commas + 48 * colons + 160 * max(0, colons - 32 * objects)
