"""Model files: one safetensors file with the configuration in its header. Never a pickle.

The header holds a format name and version, what kind of thing the file is, its configuration as
JSON, and a checksum of it all, which safetensors itself does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..errors import StorageError
from ..files import write_atomically
from ..tensor_file import MOST_TENSORS, parse_json, read_tensor_file

FORMAT = "sinuflow"
FORMAT_VERSION = 1


class Model(NamedTuple):
    """What a model file says."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def write_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write the model to ``path``: all of it, or nothing, and then an older file stays as it was."""
    if len(model.tensors) > MOST_TENSORS:
        raise StorageError(f"cannot write {path}: it would have more than {MOST_TENSORS:,} tensors; use fewer blocks")
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.tensors.items()}
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "kind": model.kind,
        "config": json.dumps(model.config),
    }
    header["sha256"] = _checksum(header, tensors)
    write_atomically(Path(path), to_safetensors(tensors, metadata=header))


def read_model(path: Path) -> Model:
    """Read what :func:`write_model` wrote, or raise a :class:`~sinuflow.StorageError`."""
    header, tensors = read_tensor_file(path)
    if header.get("format") != FORMAT:
        raise StorageError(f"{path} is a safetensors file, but not a Sinuflow model")
    version = header.get("format_version", "")
    if not re.fullmatch("[0-9]{1,9}", version):
        raise StorageError(f"{path} has no valid format version; it is damaged")
    if int(version) > FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {version}, and this Sinuflow reads up to {FORMAT_VERSION}: upgrade Sinuflow"
        )
    if header.get("sha256") != _checksum(header, tensors):
        raise StorageError(f"{path} is damaged: its contents do not match their checksum")
    try:
        config = parse_json(header.get("config", ""))
    except ValueError as error:
        raise StorageError(f"{path} has an invalid configuration for a flow: {error}") from error
    return Model(header.get("kind", ""), config, tensors)


def grouped(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by the part of their names before the first slash, then by the rest."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _checksum(header: dict[str, str], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(header.keys() - {"sha256"}):
        for text in (name, "=", header[name], ";"):
            digest.update(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)};".encode())
        if t.numel():
            digest.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
