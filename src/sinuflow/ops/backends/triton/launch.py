"""Tiles and launches: a program takes a few rows of all features, or of as many features as registers hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Elements of a tile; the most features of which a tile has all; and the features of a tile where there are more: few,
#: so that a tile has many rows for every parameter that rows share.
_TILE, _MAX_FEATURES, _FEW_FEATURES = 512, 64, 8

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


def device_guard(wrapper: Wrapper) -> Wrapper:
    """Launch kernels on the device of the first tensor, whichever GPU is the current one."""

    @functools.wraps(wrapper)
    def guarded(*arguments: Any, **options: Any) -> Any:
        tensors = (t for a in arguments for t in (a if isinstance(a, tuple) else (a,)) if isinstance(t, Tensor))
        with torch.cuda.device_of(next(tensors)):
            return wrapper(*arguments, **options)

    return guarded  # type: ignore[return-value]


def tiling(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The numbers of tiles of rows and of features of a feature-major batch, at least one, and the shape of a tile."""
    features, rows = x.shape
    width = triton.next_power_of_2(features) if features <= _MAX_FEATURES else _FEW_FEATURES
    height = _TILE // width
    return (max(1, triton.cdiv(rows, height)), triton.cdiv(features, width)), {"FEATURES": width, "ROWS": height}


def reduce_tiles(values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """One value for each row from those of all tiles of features, (rows, tiles)."""
    return values[:, 0] if values.shape[1] == 1 else reduce(values, 1)


@triton.jit
def tile(rows, features, FEATURES: tl.constexpr, ROWS: tl.constexpr):
    """This program's features and rows, the offsets of the tile's elements, and their mask."""
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = feature[:, None] * rows.to(tl.int64) + row[None, :]
    inside = (feature < features)[:, None] & (row < rows)[None, :]
    return feature, row, place, inside


@triton.jit
def tile_slot(row):
    """The offset of this program's value for a row, where every tile of features stores one."""
    return row * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def per_row(at, row, rows, SHARED: tl.constexpr):
    """Offsets of parameters ``at`` as a column if rows share them, else of those of every row."""
    return at[:, None] if SHARED else at[:, None] * rows.to(tl.int64) + row[None, :]
