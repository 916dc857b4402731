"""From a model file to what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..checks import anything, fields, flag, integer, items, number, optional, text
from ..data import Preprocessor
from ..data.columns import LONGEST_NAME
from ..data.split import Split
from ..errors import SinuflowError, StorageError
from ..flow_config import FlowConfig, ImageFlowConfig, flow_config
from ..flows.flow import Flow
from ..flows.loading import build_flow
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import read_model
from ..training.history import RECORD
from .image import ImageModel
from .table import TableModel


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Flow | TableModel | ImageModel:
    """Read a model file: a flow, a fitted table or fitted images, whichever it holds, ready for evaluation.

    Raises a :class:`~sinuflow.StorageError` if the file cannot be read, is not a Sinuflow model, was
    written by a newer version, is damaged, or holds other tensors than its configuration asks for.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "m.safetensors"
        >>> from sinuflow import SinusoidalFlow
        >>> SinusoidalFlow(features=2, blocks=1, hidden=(8,)).save(path)
        >>> load(path).features
        2
    """
    path = Path(path)
    model = read_model(path)
    if model.kind == "flow":
        return build_flow(path, model.config, model.tensors).to(device)
    if model.kind == "table":
        return _build_table(path, model.config, model.tensors, device)
    if model.kind == "images":
        return _build_images(path, model.config, model.tensors).to(device)
    raise StorageError(f"{path} holds a {model.kind[:60]!r}, which is not a model that this Sinuflow knows")


def _build_table(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor], device: str | torch.device
) -> TableModel:
    with _described(path, "model of a table"):
        _TABLE(config, "configuration")
        groups = _grouped(tensors, "flow", "preprocessing", "split")
        _demand_names(groups, {"preprocessing": ("mean", "factor"), "split": ("validation", "test", "unused")})
        preprocessor = Preprocessor.from_dict(config["preprocessing"], groups["preprocessing"])
        _check_quantiles(groups["quantiles"][""])
        split = _split(config["facts"]["rows"], groups["split"])
        known = _hyperparameters(path, config["flow"])
        if (known.features, known.context) != (len(preprocessor.features), preprocessor.context_width):
            raise ValueError("the size of its flow does not match its columns")
    flow = build_flow(path, config["flow"], groups["flow"])
    assert isinstance(flow, SinusoidalFlow)  # by its hyperparameters
    return TableModel(flow.to(device), preprocessor, split, groups["quantiles"][""], config["history"], config["facts"])


def _build_images(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> ImageModel:
    with _described(path, "model of images"):
        _IMAGES(config, "configuration")
        groups = _grouped(tensors, "flow")
        _demand_names(groups, {})
        _check_quantiles(groups["quantiles"][""])
        pixels = PixelMap(float(config["alpha"]))
        classes, counts = config["classes"], config["counts"]
        known = _hyperparameters(path, config["flow"])
        if not isinstance(known, ImageFlowConfig) or known.context != len(classes or []):
            raise ValueError("its flow does not fit its images or classes")
        if (classes is None) != (counts is None) or len(classes or []) != len(counts or []):
            raise ValueError("its flow does not fit its images or classes")
        if classes is not None and (len(set(classes)) < len(classes) or not sum(counts)):
            raise ValueError("its classes must have different names and at least one image")
    flow = build_flow(path, config["flow"], groups["flow"])
    assert isinstance(flow, SinusoidalFlow)  # by its hyperparameters
    return ImageModel(flow, pixels, classes, counts, groups["quantiles"][""], config["history"], config["facts"])


@contextmanager
def _described(path: Path, what: str) -> Iterator[None]:
    """Turn the errors of an invalid configuration into a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except (ValueError, OverflowError, SinuflowError) as error:
        raise StorageError(f"{path} has an invalid configuration for a {what}: {error}") from error


def _hyperparameters(path: Path, config: Any) -> FlowConfig | ImageFlowConfig:
    with _described(path, "flow"):
        return flow_config(config)


def _grouped(tensors: dict[str, Tensor], *names: str) -> dict[str, dict[str, Tensor]]:
    """The tensors by the first part of their names; these groups are there in any case."""
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _demand_names(groups: dict[str, dict[str, Tensor]], names: dict[str, tuple[str, ...]]) -> None:
    """Refuse missing and unexpected tensors."""
    for group, wanted in {"quantiles": ("",), **names}.items():
        if set(groups.get(group, {})) != set(wanted):
            shown = ", ".join(f"{group}/{name}" if name else group for name in wanted)
            raise ValueError(f"of the tensors of {group}, it must have {shown} and no others")
    unknown = groups.keys() - {"flow", "quantiles", *names}
    if unknown:
        raise ValueError(f"it has tensors called {min(unknown)[:60]!r}, which are not expected")


def _check_quantiles(quantiles: Tensor) -> None:
    increasing = quantiles.dim() == 1 and len(quantiles) > 1 and quantiles.dtype == torch.float64
    if not increasing or not bool((quantiles[1:] >= quantiles[:-1]).all()):  # False for NaN
        raise ValueError("its quantiles must be float64 and in increasing order")


def _split(rows: int, tensors: dict[str, Tensor]) -> Split:
    if any(t.dim() != 1 or t.dtype not in (torch.int32, torch.int64) for t in tensors.values()):
        raise ValueError("its split must be lists of row numbers")
    split = Split(rows, **{name: t.numpy() for name, t in tensors.items()})
    split.check()
    return split


# ---------------------------------------------------------------- schemas of configurations

_ESTIMATOR = fields(
    {
        "parameters": fields({}, others=anything),
        "features": integer(1),
        "names": optional(items(text(LONGEST_NAME))),
    }
)
_COMMON_FACTS = {"seed": integer(0, 2**63), "steps": integer(), "best_step": integer(), "seconds": number(low=0)}

_TABLE = fields(
    {
        "flow": fields({}, others=anything),  # checked by flow_config
        "preprocessing": fields({"columns": items(fields({}, others=anything), least=1)}),  # checked by Column
        "history": items(RECORD),
        "facts": fields(
            {
                **_COMMON_FACTS,
                "table": text(),
                "rows": integer(1),
                "content": text(200),
                "used_rows": integer(1),
                "train_rows": integer(1),
                "parameters": integer(1),
                "torch": text(200),
            },
            {"validation_nll": optional(number(finite=False)), "estimator": _ESTIMATOR},
            others=anything,
        ),
    }
)

_IMAGES = fields(
    {
        "flow": fields({}, others=anything),
        "alpha": number(low=0),
        "classes": optional(items(text(), least=1)),
        "counts": optional(items(integer(), least=1)),
        "history": items(RECORD),
        "facts": fields(
            {
                **_COMMON_FACTS,
                "images": text(),
                "train_images": integer(),
                "validation_images": integer(),
                "flips": flag,
                "bits_per_dimension": number(finite=False),
                "histogram_bits": number(finite=False),
            },
            {"inverted": integer(), "round_trip": number(finite=False), "torch": text(200)},
            others=anything,
        ),
    }
)
