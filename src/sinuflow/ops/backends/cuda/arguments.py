"""The kernels' arguments, as the structures of the same names in the CUDA sources."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

_POINTER, _INT, _UNSIGNED, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_float


class Arguments(ctypes.Structure):
    """A kernel's only parameter; tensors are given as they are, None for a null pointer."""

    #: Those whose numbers are double.
    doubles: tuple[str, ...] = ()

    def __init__(self, **values: Any) -> None:
        #: The tensors must live as long as their addresses are in use.
        self.tensors = [value for value in values.values() if isinstance(value, Tensor)]
        missing = {field[0] for field in self._fields_} ^ set(values)
        assert not missing, missing
        super().__init__(**{name: _address(value, name in self.doubles) for name, value in values.items()})


def _address(value: Any, double: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    # Kernels take bare memory: whatever else were given would be read as if it were this.
    assert value.is_contiguous()
    right = (torch.float64,) if double else (torch.float32, torch.int32, torch.int64, torch.bool)
    assert value.dtype in right, value.dtype
    return value.data_ptr()


class ForwardArguments(Arguments):
    """Of flow_forward."""

    _fields_ = (
        ("x", _POINTER),
        ("context", _POINTER),
        ("weights", _POINTER),
        ("starts", _POINTER),
        ("tables", _POINTER),
        ("biases", _POINTER),
        ("waves", _POINTER),
        ("affine", _POINTER),
        ("z", _POINTER),
        ("ladj", _POINTER),
        ("log_density", _POINTER),
        ("kept_inputs", _POINTER),
        ("kept_hidden", _POINTER),
        ("kept_outputs", _POINTER),
        ("kept_x", _POINTER),
        ("seed", _POINTER),
        ("drop_below", _UNSIGNED),
        ("keep_scale", _FLOAT),
        ("batch", _INT),
        ("tiles", _INT),
        ("parts", _INT),
    )


class BackwardArguments(Arguments):
    """Of flow_backward."""

    _fields_ = (
        ("z", _POINTER),
        ("grad_z", _POINTER),
        ("grad_ladj", _POINTER),
        ("weights", _POINTER),
        ("starts", _POINTER),
        ("tables", _POINTER),
        ("waves", _POINTER),
        ("affine", _POINTER),
        ("kept_inputs", _POINTER),
        ("kept_hidden", _POINTER),
        ("kept_outputs", _POINTER),
        ("kept_x", _POINTER),
        ("grad_x", _POINTER),
        ("grad_context", _POINTER),
        ("grad_outputs", _POINTER),
        ("grad_hidden", _POINTER),
        ("grad_values", _POINTER),
        ("nll_scale", _FLOAT),
        ("keep_scale", _FLOAT),
        ("batch", _INT),
        ("tiles", _INT),
        ("parts", _INT),
        ("lower", _INT),
        ("upper", _INT),
    )


class WeightArguments(Arguments):
    """Of weight_gradients."""

    _fields_ = (
        ("kept_inputs", _POINTER),
        ("kept_hidden", _POINTER),
        ("grad_outputs", _POINTER),
        ("grad_hidden", _POINTER),
        ("jobs", _POINTER),
        ("reach", _POINTER),
        ("weight_offsets", _POINTER),
        ("bias_offsets", _POINTER),
        ("gradient", _POINTER),
        ("batch", _INT),
        ("lower", _INT),
    )


class WaveArguments(Arguments):
    """Of wave_gradients."""

    _fields_ = (
        ("free", _POINTER),
        ("waves", _POINTER),
        ("affine", _POINTER),
        ("kept_x", _POINTER),
        ("grad_values", _POINTER),
        ("z", _POINTER),
        ("grad_z", _POINTER),
        ("grad_ladj", _POINTER),
        ("offsets", _POINTER),
        ("gradient", _POINTER),
        ("nll_scale", _FLOAT),
        ("batch", _INT),
    )


class PrepareArguments(Arguments):
    """Of prepare."""

    _fields_ = (
        ("sources", _POINTER),
        ("wave_sources", _POINTER),
        ("index", _POINTER),
        ("packed", _POINTER),
        ("waves", _POINTER),
        ("affine", _POINTER),
        ("count", _INT),
    )


class InverseArguments(Arguments):
    """Of flow_inverse."""

    _fields_ = (
        ("z", _POINTER),
        ("context", _POINTER),
        ("weights", _POINTER),
        ("starts", _POINTER),
        ("tables", _POINTER),
        ("inner", _POINTER),
        ("ends", _POINTER),
        ("biases", _POINTER),
        ("waves", _POINTER),
        ("affine", _POINTER),
        ("x", _POINTER),
        ("ladj", _POINTER),
        ("iterations", _POINTER),
        ("residual", _POINTER),
        ("converged", _POINTER),
        ("batch", _INT),
        ("tiles", _INT),
        ("parts", _INT),
        ("limit", _INT),
    )
