"""From a model file to what it holds."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .data import Preprocessor
from .errors import SinuflowError, StorageError
from .flow import SinusoidalFlow
from .images import ImageModel
from .pixels import PixelMap
from .storage import read_model
from .tables import TableModel
from .tables.split import Split


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> SinusoidalFlow | TableModel | ImageModel:
    """Read a model file: a flow, a fitted table or fitted images, whichever it holds, ready for evaluation.

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
    if model.kind == "flow":
        return _build(path, model.config, model.tensors).to(device)
    if model.kind == "table":
        return _build_table(path, model.config, model.tensors, device)
    if model.kind == "images":
        return _build_images(path, model.config, model.tensors).to(device)
    raise StorageError(f"{path} holds a {model.kind!r}, which is not a model that this Sinuflow knows")


def _build_table(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor], device: str | torch.device
) -> TableModel:
    groups = _grouped(tensors, "flow", "preprocessing", "split")
    try:
        flow = _build(path, config["flow"], groups["flow"])
        preprocessor = Preprocessor.from_dict(config["preprocessing"], groups["preprocessing"])
        ids = {name: t.numpy().astype(np.int64) for name, t in groups["split"].items()}
        split = Split.restored(config["facts"]["rows"], **ids)
        size = len(preprocessor.features)
        fits = flow.features == size and flow.context == preprocessor.context_width
        if not fits or preprocessor.factor.shape != (size, size) or preprocessor.mean.shape != (size,):
            raise StorageError(f"{path} does not fit its configuration: its flow and its columns differ in number")
        return TableModel(
            flow.to(device), preprocessor, split, tensors["quantiles"], config["history"], config["facts"]
        )
    except StorageError:
        raise
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError, SinuflowError) as error:
        raise StorageError(f"{path} has a configuration that makes no model of a table: {error}") from error


def _build_images(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> ImageModel:
    try:
        flow = _build(path, config["flow"], _grouped(tensors, "flow")["flow"])
        classes, counts, quantiles = config["classes"], config["counts"], tensors["quantiles"]
        same = flow.context == len(classes or []) == len(counts or [])
        if not same or "image" not in flow.config or quantiles.dim() != 1 or not len(quantiles):
            raise StorageError(f"{path} does not fit its configuration: its flow is not one of these images or classes")
        pixels = PixelMap(float(config["alpha"]))
        return ImageModel(flow, pixels, classes, counts, quantiles, config["history"], config["facts"])
    except StorageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SinuflowError) as error:
        raise StorageError(f"{path} has a configuration that makes no model of images: {error}") from error


def _grouped(tensors: dict[str, Tensor], *names: str) -> dict[str, dict[str, Tensor]]:
    """The tensors by the first part of their names; these groups are there in any case."""
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _build(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> SinusoidalFlow:
    try:
        if _smallest_size(config) > sum(t.numel() for t in tensors.values()):
            raise StorageError(f"{path} does not fit its configuration: it holds far too few numbers")
        flow = SinusoidalFlow.from_config(config)
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
    if "image" in config:
        waves = math.prod(config["image"]) * config["scales"] * config["waves"]
        matrices = config["channels"] * (config["image"][0] + config["channels"] * config["residual_blocks"])
        return int(config["blocks"] * max(waves, matrices, config["context"] * config["channels"]))
    widths = [config["features"]]
    if config["conditioning"] != "none":
        widths = [*widths, *config["hidden"], *widths]
    largest_matrix = max(inputs * outputs for inputs, outputs in zip(widths, [*widths[1:], 1], strict=True))
    waves = config["features"] * config["scales"] * config["waves"]
    return int(config["blocks"] * max(largest_matrix, waves))


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
