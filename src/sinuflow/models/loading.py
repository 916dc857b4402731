"""Read model files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import SinuflowError, StorageError
from ..flows.flow import Flow
from ..flows.loading import build_flow
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import grouped, read_model
from .image import ImageModel
from .ranking import Ranking
from .table import TableModel


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Flow | TableModel | ImageModel:
    """Read a model file: a flow, a table model or an image model, ready for evaluation.

    Raises a :class:`~sinuflow.StorageError` if the file cannot be read, is not a Sinuflow model, was written by a newer
    version, is damaged, or holds other tensors than its configuration requires.

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
        return build_flow(path, model.config, model.tensors).to(device)
    fitted: Any = {cls.kind: cls for cls in (TableModel, ImageModel)}.get(model.kind)
    if fitted is None:
        raise StorageError(f"{path} holds a {model.kind[:60]!r}, which this version of Sinuflow does not know")
    config, groups = model.config, grouped(model.tensors)
    try:
        fitted.schema(config, "configuration")
        expected = {"quantiles", *fitted.tensor_names}
        if {name for name in model.tensors if not name.startswith(("flow/", "anomaly/", "ranking/"))} != expected:
            raise ValueError(f"besides the flow's tensors, it must have {', '.join(sorted(expected))} and no others")
        quantiles = _quantiles(model.tensors["quantiles"])
        anomaly = {name: _quantiles(t) for name, t in groups.get("anomaly", {}).items()}
        if anomaly.keys() - {"quantiles"} or (fitted is not TableModel and {"anomaly", "ranking"} & groups.keys()):
            raise ValueError("it has tensors that such a model does not have")
        flow = build_flow(path, config["flow"], groups.get("flow", {}))
        if not isinstance(flow, (SinusoidalFlow, MixedFlow) if fitted is TableModel else SinusoidalFlow):
            raise ValueError("its flow must be a SinusoidalFlow, or for tables a MixedFlow")
        parts = fitted.parse(config, groups, flow)
        ranking = Ranking.from_tensors(parts[0], groups["ranking"]) if "ranking" in groups else None
    except StorageError:
        raise
    except (ValueError, OverflowError, SinuflowError) as error:
        raise StorageError(f"{path} has an invalid configuration for a {fitted.description}: {error}") from error
    loaded: TableModel | ImageModel = fitted(flow, *parts, quantiles, config["history"], config["facts"])
    if isinstance(loaded, TableModel):
        loaded.anomaly_quantiles, loaded.ranking = anomaly.get("quantiles"), ranking
    return loaded.to(device)


def _quantiles(stored: Tensor) -> Tensor:
    """Stored quantiles, or a ValueError."""
    increasing = stored.dim() == 1 and len(stored) > 1 and stored.dtype == torch.float64
    if not increasing or not bool((stored[1:] >= stored[:-1]).all()):  # False for NaN
        raise ValueError("its quantiles must be float64 and in increasing order")
    return stored
