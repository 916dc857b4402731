"""Building a flow from a stored configuration and tensors, neither of which is trusted."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError, SinuflowError, StorageError
from ..flow_config import Size, flow_config, total
from ..registry import Spec, build
from . import image  # noqa: F401, registers its classes
from .flow import Flow
from .sinusoidal import SinusoidalFlow
from .storage import check_size


def build_flow(path: Path, config: Any, tensors: dict[str, Tensor]) -> Flow:
    """The flow of a configuration with these tensors as its parameters, or a :class:`~sinuflow.StorageError`.

    A configuration is the hyperparameters of a :class:`~sinuflow.SinusoidalFlow`, or a spec, whose classes must be
    registered. Construction is limited to a small multiple of the tensors' size.
    """
    composed = isinstance(config, dict) and "class" in config
    try:
        flow = _from_spec(config, tensors) if composed else _from_hyperparameters(config, tensors)
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {error}") from error
    except _TooLargeError as error:
        raise StorageError(f"{path} does not fit its configuration: it holds far too few parameters") from error
    except Exception as error:  # constructors of registered classes may raise any
        if not composed and not isinstance(error, (ValueError, OverflowError, SinuflowError)):
            raise
        raise StorageError(f"{path} has an invalid configuration for a flow: {error}") from error
    _set_tensors(path, flow, tensors)
    try:
        flow.check_parameters()
    except ArgumentError as error:
        raise StorageError(f"{path} holds parameters that cannot be used: {error}") from error
    flow.eval()
    if composed:
        _try(path, flow)
    return flow


def _from_hyperparameters(config: Any, tensors: dict[str, Tensor]) -> Flow:
    size = flow_config(config).size
    # Small mismatches get a precise message later; a flow far larger than the file is never built.
    if size.parameters > 2 * _elements(tensors) + 10_000 or size.tensors > 2 * len(tensors) + 100:
        raise _TooLargeError
    with _WithoutValues(tensors, limited=False):
        return SinusoidalFlow.from_config(config)


def _from_spec(config: Any, tensors: dict[str, Tensor]) -> Flow:
    spec = Spec.from_json(config)
    try:
        check_size(spec, tensors)
    except ValueError as error:
        raise _TooLargeError from error
    with _WithoutValues(tensors, limited=True):
        flow = build(spec)
    if not isinstance(flow, Flow):
        raise ArgumentError(f"it describes a {type(flow).__name__}")
    return flow


def _elements(tensors: dict[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())


def _set_tensors(path: Path, flow: Flow, tensors: dict[str, Tensor]) -> None:
    """Replace the flow's parameters and buffers by the tensors, which must have their names, shapes and dtypes."""
    state = {name: t for name, t in flow.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    expected = {name: t.shape for name, t in state.items()}
    shapes = {name: t.shape for name, t in tensors.items()}
    if shapes != expected:
        wrong = sorted(n for n in expected.keys() | shapes.keys() if expected.get(n) != shapes.get(n))
        first = wrong[0]
        raise StorageError(
            f"{path} does not fit its configuration in {len(wrong)} tensors; {first[:200]!r} should have shape "
            f"{_shape(expected.get(first))} and has {_shape(shapes.get(first))}"
        )
    dtypes = {tensors[name].dtype for name, t in state.items() if isinstance(t, nn.Parameter) and t.is_floating_point()}
    dtype = next(iter(dtypes), torch.get_default_dtype())
    wrong = [
        name
        for name, t in state.items()
        if t.dtype != tensors[name].dtype and not (t.is_floating_point() and tensors[name].is_floating_point())
    ]
    if wrong or len(dtypes) > 1:
        found = sorted({str(t.dtype) for t in tensors.values()})
        raise StorageError(f"{path} mixes or misuses dtypes: {', '.join(found)}")
    modules = dict(flow.named_modules(remove_duplicate=False))
    for name, tensor in tensors.items():  # load_state_dict would take time that grows with the square of their number
        module, _, own = name.rpartition(".")
        old = state[name]
        new = nn.Parameter(tensor, old.requires_grad) if isinstance(old, nn.Parameter) else tensor
        setattr(modules[module], own, new)
    for module in modules.values():  # masks, which are not stored, follow the parameters
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers[name]
            if buffer is not None and buffer.dtype == torch.get_default_dtype():
                module._buffers[name] = buffer.to(dtype)


def _try(path: Path, flow: Flow) -> None:
    """Score one row: components that do not fit together are refused."""
    like = next(flow.parameters(), torch.empty(0))
    if like.dtype not in (torch.float32, torch.float64):
        return  # such parameters are converted before use
    context = like.new_zeros((1, flow.context)) if flow.context else None
    try:
        with torch.no_grad():
            log_density = flow(context).log_prob(
                like.new_full((1, flow.features), 0.5)
            )  # in the domain of log and logit
        if log_density.shape != (1,):
            raise ArgumentError(f"the log-density of one row has shape {tuple(log_density.shape)}")
    except Exception as error:  # whatever a user's class may raise
        raise StorageError(f"{path} describes a flow that cannot be evaluated: {error}") from error


class _TooLargeError(Exception):
    """Construction needs far more memory than the file has tensors for."""


#: Functions that create tensors of any size.
_FACTORIES = {
    "arange", "empty", "eye", "full", "linspace", "logspace", "new_empty", "new_full", "new_ones", "new_zeros", "ones",
    "rand", "randint", "randn", "randperm", "zeros",
}  # fmt: skip


class _WithoutValues(TorchFunctionMode):
    """Construct modules whose parameters take no memory, and limit what else is constructed.

    Zeros take no memory until they are written, and parameters are never written, because the file replaces them. The
    meta device would do the same, but takes a hundred times longer, and more memory than most files.
    """

    def __init__(self, tensors: dict[str, Tensor], limited: bool) -> None:
        super().__init__()
        self._elements, self._tensors, self._limited = _elements(tensors), len(tensors), limited
        dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        self._thread = threading.get_ident()
        self._hooks: list[Any] = []
        self._registered = Size(0, 0)

    def __enter__(self) -> _WithoutValues:
        if self._limited:
            registries = ("parameter", "buffer", "module")
            register = [getattr(hooks, f"register_module_{name}_registration_hook") for name in registries]
            self._hooks = [each(self._count) for each in register]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def _count(self, module: nn.Module, name: str, value: Tensor | nn.Module | None) -> None:
        """Limit parameters, buffers such as masks, and modules."""
        if value is None or threading.get_ident() != self._thread:
            return
        elements = value.numel() if isinstance(value, Tensor) else 0
        self._registered = total([self._registered, Size(elements, 1)])
        if self._registered.parameters > 4 * self._elements + 100_000 or (
            self._registered.tensors > 10 * self._tensors + 2000
        ):
            raise _TooLargeError

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in ("empty", "ones", "zeros"):
            kwargs["dtype"] = kwargs.get("dtype") or self._dtype
        if name in _FACTORIES and (self._limited or name == "zeros"):
            meta = function(*args, **{k: v for k, v in kwargs.items() if k != "generator"} | {"device": "meta"})
            if self._limited and meta.numel() > 2 * self._elements + 100_000:
                raise _TooLargeError
            if name == "zeros":  # by the operating system, when they are written
                flat = torch.from_numpy(np.zeros(meta.numel() * meta.element_size(), dtype=np.uint8))
                return flat.view(meta.dtype).view(meta.shape).requires_grad_(meta.requires_grad)
        if re.search("[^_]_$", name) and name != "requires_grad_":  # in place
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, nn.Parameter):
                return target
        return function(*args, **kwargs)


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
