"""Model files: one safetensors file with the configuration in its header. Never a pickle.

The header holds a format name and version, what kind of thing the file is, its configuration as
JSON, and a checksum of the tensors, which safetensors itself does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from .errors import SinuflowError, StorageError
from .flow import SinusoidalFlow

FORMAT = "sinuflow"
FORMAT_VERSION = 1


def save_flow(flow: SinusoidalFlow, path: str | os.PathLike[str]) -> None:
    """Write the flow to ``path``: all of it, or nothing, and then an older file stays as it was."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in flow.state_dict().items()}
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "kind": "flow",
        "config": json.dumps(flow.config),
        "sha256": _checksum(tensors),
    }
    write_atomically(Path(path), to_safetensors(tensors, metadata=header))


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> SinusoidalFlow:
    """Read a model file that :meth:`SinusoidalFlow.save` wrote.

    Raises a :class:`~sinuflow.StorageError` if the file cannot be read, is not a Sinuflow model, was
    written by a newer version, is damaged, or holds other tensors than its configuration asks for.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "m.safetensors"
        >>> SinusoidalFlow(features=2, blocks=1, hidden=(8,)).save(path)
        >>> load(path).features
        2
    """
    path = Path(path)
    header, tensors = _read(path)
    if header.get("format") != FORMAT:
        raise StorageError(f"{path} is a safetensors file, but not a Sinuflow model")
    version = header.get("format_version", "")
    if not version.isdigit():
        raise StorageError(f"{path} has no valid format version; it is damaged")
    if int(version) > FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {version}, and this Sinuflow reads up to {FORMAT_VERSION}: upgrade Sinuflow"
        )
    if header.get("sha256") != _checksum(tensors):
        raise StorageError(f"{path} is damaged: its tensors do not match their checksum")
    if header.get("kind") != "flow":
        raise StorageError(f"{path} holds a {header.get('kind')!r}, which this Sinuflow does not know")
    return _build(path, header, tensors).to(device)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name beside ``path``, then rename it."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise StorageError(f"{path} is not a safetensors file, or is damaged: {error}") from error


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)};".encode())
        digest.update(t.contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return digest.hexdigest()


def _build(path: Path, header: dict[str, str], tensors: dict[str, Tensor]) -> SinusoidalFlow:
    try:
        config: dict[str, Any] = json.loads(header["config"])
        # A forged configuration must not take memory: no size can exceed what the file holds, and
        # the shapes are then compared on the meta device.
        numbers = sum(t.numel() for t in tensors.values())
        sizes = [n for n in (*config.values(), *config.get("hidden", ())) if isinstance(n, int)]
        if max(sizes, default=0) > numbers or config.get("blocks", 0) > len(tensors):
            raise StorageError(f"{path} does not fit its configuration: it holds only {numbers} numbers")
        with torch.device("meta"):
            expected = {name: t.shape for name, t in SinusoidalFlow(**config).state_dict().items()}
    except StorageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SinuflowError) as error:
        raise StorageError(f"{path} has a configuration that makes no flow: {error}") from error
    found = {name: t.shape for name, t in tensors.items()}
    if found != expected:
        wrong = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
        first = wrong[0]
        raise StorageError(
            f"{path} does not fit its configuration in {len(wrong)} tensors; {first!r} should have shape "
            f"{_shape(expected.get(first))} and has {_shape(found.get(first))}"
        )
    dtypes = {t.dtype for t in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise StorageError(f"{path} mixes or misuses dtypes: {', '.join(sorted(map(str, dtypes)))}")
    flow = SinusoidalFlow(**config).to(dtypes.pop())
    flow.load_state_dict(tensors)
    return flow.eval()


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
