"""Model files: one safetensors file with the configuration in its header.

The header holds a format name and version, the kind of model, its configuration as JSON, and a checksum of everything,
which safetensors itself does not have. Version 2 adds flows whose configuration is a spec of registered classes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..errors import StorageError
from ..files import write_atomically
from ..registry import Spec, leaves
from ..tensor_file import MOST_TENSORS, parse_json, read_tensor_file

FORMAT = "sinuflow"
#: The newest version of the format.
FORMAT_VERSION = 2
#: Arguments of a layer whose product its parameters exceed.
_FACTORS = {"features", "outputs", "blocks", "scales", "waves"}
#: Arguments that are sizes or lists of sizes; other integers, such as the origin of a column, may have any magnitude.
_SIZES = _FACTORS | {"context", "hidden", "shape", "image", "channels", "residual_blocks", "order", "columns", "sizes"}


class Model(NamedTuple):
    """The content of a model file."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def write_model(path: str | os.PathLike[str], model: Model, version: int = 1) -> None:
    """Write the model to ``path`` atomically; if that fails, an older file stays unchanged.

    ``version`` is the lowest version of the format that holds such a model, so that older releases can read it.
    """
    if len(model.tensors) > MOST_TENSORS:
        raise StorageError(f"cannot write {path}: it would have more than {MOST_TENSORS:,} tensors; use fewer blocks")
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.tensors.items()}
    header = {"format": FORMAT, "format_version": str(version), "kind": model.kind, "config": json.dumps(model.config)}
    header["sha256"] = _checksum(header, tensors)
    try:
        content = to_safetensors(tensors, metadata=header)
    except RuntimeError as error:
        raise StorageError(f"cannot write {path}: {' '.join(str(error).split())}") from error
    write_atomically(Path(path), content)


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


class TooLargeError(ValueError):
    """A configuration needs far more memory than there are tensors for."""


def size_of(tensors: dict[str, Tensor]) -> tuple[int, int]:
    """The number of elements and of tensors."""
    return sum(t.numel() for t in tensors.values()), len(tensors)


def check_storable(path: str | os.PathLike[str], spec: Spec, state: dict[str, Tensor]) -> None:
    """Raise a :class:`~sinuflow.StorageError` if a file with this spec and these tensors could not be loaded."""
    for each in spec.walk():
        if not each.is_registered:
            raise StorageError(
                f"cannot write {path}: the class {each.name} is not registered; put @sinuflow.register before it"
            )
    check_separate(path, state)
    try:
        check_size(spec, state)
    except TooLargeError as error:
        raise StorageError(f"cannot write {path}: its description needs far more parameters than it has") from error


def check_separate(path: str | os.PathLike[str], state: dict[str, Tensor]) -> None:
    """Raise a :class:`~sinuflow.StorageError` if two tensors are one, which neither models nor checkpoints can hold."""
    first: dict[int, str] = {}
    for name, t in state.items():
        other = first.setdefault(t.data_ptr(), name) if t.numel() else name
        if other != name:
            raise StorageError(f"cannot write {path}: {other} and {name} share memory; create one tensor for each")


def check_size(spec: Spec, tensors: dict[str, Tensor]) -> None:
    """Raise a :class:`TooLargeError` unless the tensors can be those of a spec.

    Small mismatches get a precise message when tensors are compared. Here it matters to construct nothing far larger.
    """
    elements, count = size_of(tensors)
    specs = list(spec.walk())
    own = [each for each in specs if each.is_own]
    if sum(map(_needed, own)) > 2 * elements + 20_000 or len(specs) > 2 * count + 1000:
        raise TooLargeError
    if sum(map(_counts, own)) > elements // 2 + 200_000:
        raise TooLargeError


def _needed(spec: Spec) -> int:
    """A size that the parameters of one of Sinuflow's classes reach, by the integers in its arguments.

    It is their sum, in which permutations count by their length, and the product of those that a layer multiplies.
    """
    arguments = _used(spec)
    needed = abs(math.prod(n for name, n in arguments.items() if name in _FACTORS and type(n) is int))
    for value in (value for name, value in arguments.items() if name in _SIZES):
        integers = [abs(n) for n in leaves(value) if type(n) is int]
        is_order = isinstance(value, list) and 1 < len(value) <= 1024 and sorted(integers) == list(range(len(value)))
        needed += len(value) if is_order else sum(integers)
    return needed


def _counts(spec: Spec) -> int:
    """The counts in the plan of a masked network: one for every feature in every hidden layer."""
    features, sizes, hidden = (_used(spec).get(name) for name in ("features", "sizes", "hidden"))
    features = len(sizes) if isinstance(sizes, list) else features
    return features * len(hidden) if type(features) is int and isinstance(hidden, list) else 0


def _used(spec: Spec) -> dict[str, Any]:
    """The arguments without the hidden sizes of networks that a flow does not have."""
    without_networks = spec.arguments.get("conditioning") == "none"
    return {name: value for name, value in spec.arguments.items() if not (without_networks and name == "hidden")}


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
