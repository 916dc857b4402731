"""From a model file to what it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import SinuflowError, StorageError
from .flow import SinusoidalFlow
from .storage import read_model


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> SinusoidalFlow:
    """Read a model file that :meth:`SinusoidalFlow.save` wrote; the flow is ready for evaluation.

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
    model = read_model(path)
    if model.kind != "flow":
        raise StorageError(f"{path} holds a {model.kind!r}, which this Sinuflow does not know")
    return _build(path, model.config, model.tensors).to(device)


def _build(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> SinusoidalFlow:
    try:
        if _smallest_size(config) > sum(t.numel() for t in tensors.values()):
            raise StorageError(f"{path} does not fit its configuration: it holds far too few numbers")
        flow = SinusoidalFlow(**config)
    except StorageError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RuntimeError, SinuflowError) as error:
        raise StorageError(f"{path} has a configuration that makes no flow: {error}") from error
    expected = {name: t.shape for name, t in flow.state_dict().items()}
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
    flow.to(dtypes.pop()).load_state_dict(tensors)
    return flow.eval()


def _smallest_size(config: dict[str, Any]) -> int:
    """A lower bound on how many numbers a flow has: a forged configuration must not take memory."""
    widths = [config["features"]]
    if config["conditioning"] != "none":
        widths = [*widths, *config["hidden"], *widths]
    largest_matrix = max(inputs * outputs for inputs, outputs in zip(widths, [*widths[1:], 1], strict=True))
    waves = config["features"] * config["scales"] * config["waves"]
    return int(config["blocks"] * max(largest_matrix, waves))


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
