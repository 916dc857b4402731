"""Read model files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError, SinuflowError, StorageError
from ..flow_config import FlowConfig, ImageFlowConfig, Size, flow_config
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import grouped, read_model
from .image import ImageModel
from .table import TableModel


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> SinusoidalFlow | TableModel | ImageModel:
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
        return _build(path, model.config, model.tensors).to(device)
    fitted: Any = {cls.kind: cls for cls in (TableModel, ImageModel)}.get(model.kind)
    if fitted is None:
        raise StorageError(f"{path} holds a {model.kind[:60]!r}, which this version of Sinuflow does not know")
    config, groups = model.config, grouped(model.tensors)
    with _described(path, fitted.description):
        fitted.schema(config, "configuration")
        _check_names(groups, {"quantiles": {""}, **fitted.tensor_names})
        quantiles = groups["quantiles"][""]
        increasing = quantiles.dim() == 1 and len(quantiles) > 1 and quantiles.dtype == torch.float64
        if not increasing or not bool((quantiles[1:] >= quantiles[:-1]).all()):  # False for NaN
            raise ValueError("its quantiles must be float64 and in increasing order")
        parts = fitted.parse(config, groups, _hyperparameters(path, config["flow"]))
    flow = _build(path, config["flow"], groups.get("flow", {}))
    loaded: TableModel | ImageModel = fitted(flow, *parts, quantiles, config["history"], config["facts"])
    return loaded.to(device)


@contextmanager
def _described(path: Path, what: str) -> Iterator[None]:
    """Raise errors of an invalid configuration as a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except (ValueError, OverflowError, SinuflowError) as error:
        raise StorageError(f"{path} has an invalid configuration for a {what}: {error}") from error


def _hyperparameters(path: Path, config: Any) -> FlowConfig | ImageFlowConfig:
    with _described(path, "flow"):
        return flow_config(config)


def _check_names(groups: dict[str, dict[str, Tensor]], expected: dict[str, set[str]]) -> None:
    """Refuse missing and unexpected tensors; those of the flow are checked when it is built."""
    for group, names in expected.items():
        if set(groups.get(group, {})) != names:
            shown = ", ".join(f"{group}/{name}" if name else group for name in sorted(names))
            raise ValueError(f"of the tensors of {group}, it must have {shown} and no others")
    unknown = groups.keys() - {"flow", *expected}
    if unknown:
        raise ValueError(f"it has tensors called {min(unknown)[:60]!r}, which are not expected")


def _build(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> SinusoidalFlow:
    """The flow of a configuration, with these tensors as its parameters."""
    size = _hyperparameters(path, config).size
    found = Size(sum(t.numel() for t in tensors.values()), len(tensors))
    # Small mismatches get a precise message below; a flow far larger than the file is never built.
    if size.parameters > 2 * found.parameters + 10_000 or size.tensors > 2 * found.tensors + 100:
        raise StorageError(f"{path} does not fit its configuration: it holds far too few parameters")
    dtypes = {t.dtype for t in tensors.values()}
    with _WithoutValues(next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)):
        flow = SinusoidalFlow.from_config(config)
    expected = {name: t.shape for name, t in flow.state_dict().items()}
    shapes = {name: t.shape for name, t in tensors.items()}
    if shapes != expected:
        wrong = sorted(n for n in expected.keys() | shapes.keys() if expected.get(n) != shapes.get(n))
        first = wrong[0]
        raise StorageError(
            f"{path} does not fit its configuration in {len(wrong)} tensors; {first[:200]!r} should have shape "
            f"{_shape(expected.get(first))} and has {_shape(shapes.get(first))}"
        )
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise StorageError(f"{path} mixes or misuses dtypes: {', '.join(sorted(map(str, dtypes)))}")
    modules = dict(flow.named_modules())
    for name, tensor in tensors.items():  # load_state_dict would take time that grows with the square of their number
        module, _, own = name.rpartition(".")
        setattr(modules[module], own, nn.Parameter(tensor))
    try:
        flow.bijection.check_parameters()
    except ArgumentError as error:
        raise StorageError(f"{path} holds parameters that cannot be used: {error}") from error
    return flow.eval()


class _WithoutValues(TorchFunctionMode):
    """Parameters that are created inside have a dtype, but no values yet, and so take no memory.

    The meta device would do the same, but takes a hundred times longer, and more memory than most files.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in ("empty", "ones", "zeros"):
            create = torch.empty if name == "zeros" else function
            return create(*args, **{**kwargs, "dtype": kwargs.get("dtype") or self._dtype})
        if name in ("kaiming_uniform_", "mul_", "uniform_", "zeros_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
