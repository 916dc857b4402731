"""Building a flow from a stored configuration and tensors, neither of which is trusted."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from ..conditioners import PixelCNN
from ..errors import ArgumentError, StorageError
from ..registry import Spec, build
from .flow import Flow
from .sinusoidal import flow_spec
from .storage import TooLargeError, check_size, size_of


def build_flow(path: Path, config: Any, tensors: dict[str, Tensor]) -> Flow:
    """The flow of a configuration with these tensors as its parameters, or a :class:`~sinuflow.StorageError`.

    A configuration is the hyperparameters of a :class:`~sinuflow.SinusoidalFlow`, or a spec, whose classes must be
    registered. Construction is limited to a small multiple of the tensors' size.
    """
    composed = isinstance(config, dict) and "class" in config
    try:
        spec = Spec.from_json(config) if composed else flow_spec(config)
        check_size(spec, tensors)
        with _WithoutValues(tensors):
            flow = build(spec)
        if not isinstance(flow, Flow):
            raise ArgumentError(f"it describes a {type(flow).__name__}")
    except StorageError as error:
        raise StorageError(f"{path} cannot be loaded: {error}") from error
    except TooLargeError as error:
        raise StorageError(f"{path} does not fit its configuration: it holds far too few parameters") from error
    except Exception as error:  # constructors of registered classes may raise any
        raise StorageError(f"{path} has an invalid configuration for a flow: {error}") from error
    _set_tensors(path, flow.eval(), tensors)
    try:
        flow.check_parameters()
    except ArgumentError as error:
        raise StorageError(f"{path} holds parameters that cannot be used: {error}") from error
    if composed:
        _try(path, flow)
    return flow


def _set_tensors(path: Path, flow: Flow, tensors: dict[str, Tensor]) -> None:
    """Replace the flow's parameters and buffers by the tensors, which must have their names, shapes and dtypes."""
    state = {name: t for name, t in flow.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    expected = {name: (*t.shape,) for name, t in state.items()}
    shapes = {name: (*t.shape,) for name, t in tensors.items()}
    if shapes != expected:
        wrong = sorted(n for n in expected.keys() | shapes.keys() if expected.get(n) != shapes.get(n))
        raise StorageError(
            f"{path} does not fit its configuration in {len(wrong)} tensors; {wrong[0][:200]!r} should have shape "
            f"{expected.get(wrong[0], 'none')} and has {shapes.get(wrong[0], 'none')}"
        )
    dtypes = {tensors[name].dtype for name, t in state.items() if isinstance(t, nn.Parameter)}
    if len(dtypes) > 1 or any(_kind(t) != _kind(tensors[name]) for name, t in state.items()):
        names = sorted({str(t.dtype) for t in tensors.values()})
        raise StorageError(f"{path} mixes or misuses dtypes: {', '.join(names)}")
    modules = dict(flow.named_modules(remove_duplicate=False))
    for name, tensor in tensors.items():  # load_state_dict would take time that grows with the square of their number
        module, _, own = name.rpartition(".")
        is_parameter = isinstance(state[name], nn.Parameter)
        setattr(modules[module], own, nn.Parameter(tensor, state[name].requires_grad) if is_parameter else tensor)
    for holder in modules.values():  # masks, which are not stored, have the dtype of the parameters
        for name in holder._non_persistent_buffers_set:
            buffer = holder._buffers[name]
            if buffer is not None and buffer.dtype == torch.get_default_dtype():
                holder._buffers[name] = buffer.to(next(iter(dtypes), buffer.dtype))


def _kind(t: Tensor) -> torch.dtype | str:
    """The dtype; floating-point dtypes can be converted to one another."""
    return "float" if t.is_floating_point() else t.dtype


def _try(path: Path, flow: Flow) -> None:
    """Score one row, in the domain of log and logit: components that do not fit together are refused."""
    like = next(flow.parameters(), torch.empty(0))
    if like.dtype not in (torch.float32, torch.float64):
        return  # such parameters are converted before use
    maps = max((module.channels for module in flow.modules() if isinstance(module, PixelCNN)), default=0)
    if maps * flow.features > sum(p.numel() for p in flow.parameters()) // 10 + 400_000:
        return  # convolutions of few weights have activations of any size
    try:
        with torch.no_grad():
            row = like.new_full((flow.features,), 0.5)
            row[: getattr(flow, "discrete", 0)] = 0  # codes of a mixed flow
            flow(like.new_zeros(flow.context) if flow.context else None).log_prob(row)
    except Exception as error:  # methods of registered classes may raise any
        raise StorageError(f"{path} describes a flow that cannot be evaluated: {error}") from error


#: Functions that create tensors of any size.
_FACTORIES = {"empty", "full", "ones", "rand", "randn", "zeros"}
#: Further ones, whose size is not an argument.
_OTHER_FACTORIES = {"arange", "eye", "linspace", "logspace", "randint", "randperm", "tril_indices", "triu_indices"}


class _WithoutValues(TorchFunctionMode):
    """Construct modules whose parameters take no memory, and limit what else is constructed.

    Zeros take no memory until they are written, and parameters are never written, because the file replaces them. The
    meta device would do the same, but takes a hundred times longer, and more memory than most files.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self._size = size_of(tensors)
        dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        self._thread = threading.get_ident()
        self._hooks: list[Any] = []
        self._elements = self._registered = 0

    def __enter__(self) -> _WithoutValues:
        for kind in ("parameter", "buffer", "module"):
            self._hooks.append(getattr(hooks, f"register_module_{kind}_registration_hook")(self._count))
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
        self._elements += value.numel() if isinstance(value, Tensor) else 0
        self._registered += 1
        elements, tensors = self._size
        if self._elements > 4 * elements + 100_000 or self._registered > 10 * tensors + 2000:
            raise TooLargeError

    def _limit(self, elements: int) -> None:
        """Limit the size of one tensor."""
        if elements > 2 * self._size[0] + 100_000:
            raise TooLargeError

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in _FACTORIES:
            size = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
            self._limit(math.prod(size))
            if name in ("empty", "ones", "zeros"):
                kwargs["dtype"] = dtype = kwargs.get("dtype") or self._dtype or torch.get_default_dtype()
            if name == "zeros":  # by the operating system, when they are written
                flat = torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8))
                return flat.view(dtype).view(tuple(size)).requires_grad_(kwargs.get("requires_grad", False))
        elif name in _OTHER_FACTORIES:
            options = {k: v for k, v in kwargs.items() if k not in ("device", "generator", "out", "pin_memory")}
            self._limit(function(*args, **options, device="meta").numel())
        if name[-1:] == "_" != name[-2:-1] and name != "requires_grad_":  # in place
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, nn.Parameter):
                return target
        return function(*args, **kwargs)
