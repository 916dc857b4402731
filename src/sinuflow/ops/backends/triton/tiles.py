"""How the work is cut: one program takes a few rows of all features, or of as many as it has registers for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Numbers in a tile; features of which a tile has all; and features in a tile where there are more, so that it has many
#: rows, and numbers that all rows share are worth reading.
_TILE, _MOST_FEATURES, _FEW_FEATURES = 512, 64, 8


class Tiling(NamedTuple):
    """Tiles of a batch of shape (features, rows)."""

    grid: tuple[int, int]  # tiles of rows, and of features
    features: int  # to a tile
    rows: int


Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


def on_its_device(wrapper: Wrapper) -> Wrapper:
    """Launch a wrapper's kernels where its tensors are, whichever GPU is the current one."""

    @functools.wraps(wrapper)
    def guarded(*arguments: Any, **options: Any) -> Any:
        tensors = (t for a in arguments for t in (a if isinstance(a, tuple) else (a,)) if isinstance(t, Tensor))
        device = next(tensors).device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            return wrapper(*arguments, **options)

    return guarded  # type: ignore[return-value]


def tiling(x: Tensor) -> Tiling:
    """The tiles of a feature-major batch; there is at least one."""
    features, rows = x.shape
    width = triton.next_power_of_2(features) if features <= _MOST_FEATURES else _FEW_FEATURES
    height = _TILE // width
    return Tiling((max(1, triton.cdiv(rows, height)), triton.cdiv(features, width)), width, height)


def by_row(numbers: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """One number for each row, from those of every tile of features, (rows, tiles): quickly, if these are together."""
    return numbers[:, 0] if numbers.shape[1] == 1 else reduce(numbers, 1)


@triton.jit
def tile(rows, features, FEATURES: tl.constexpr, ROWS: tl.constexpr):
    """This program's features and rows, where each number of the tile is, and which ones are there at all."""
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = feature[:, None] * rows.to(tl.int64) + row[None, :]
    inside = (feature < features)[:, None] & (row < rows)[None, :]
    return feature, row, place, inside


@triton.jit
def own_row(row):
    """Where this program's number for a row is, if there is one from every tile of features."""
    return row * tl.num_programs(1) + tl.program_id(1)
