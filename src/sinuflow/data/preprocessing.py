"""The bijection between rows of numbers in a table's units and the flow's input."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..bijections.base import CERTIFIED
from ..bijections.columns import ElementwiseDataBijection, Float64Module
from ..bijections.whitening import Whitening
from ..errors import DataError
from .cells import Cells, RowCells, draw_points, fixed_points, log_weight
from .columns import MAP_NAMES, UNBOUNDED, Column, columns_bijection
from .levels import LevelCodes, Levels
from .numbers import Array
from .refusals import options
from .sources import Batch, seeded

#: Which values have levels: atoms, categories and missing values; categories and missing values; or none.
LevelKinds = Literal["atoms", "categories", "none"]
#: The number of rows whose cells are computed at once.
_ROWS = 65_536


class Preprocessor(Float64Module):
    r"""The bijection from the feature columns of a table to the flow's input, and the encoding of context columns.

    The flow's input has two parts. First come the codes of levels (:mod:`sinuflow.data.levels`), for columns with
    atoms, categories or missing values. Then come axes of normal scores: the columns' maps
    (:mod:`sinuflow.data.columns`) represent every value by a point or a cell of its axis (:mod:`sinuflow.data.cells`),
    and whitening, :math:`z \to L^{-1}(z - \mu)`, decorrelates the axes. The flow is initialized to the identity, so the
    density starts as a Gaussian copula. All buffers are float64; the result is rounded to the flow's dtype at the end.

    Args:
        columns: all columns of the table, including constant ones, which are neither features nor context.
        levels: which values have levels: ``"atoms"``, that is atoms, categories and missing values; ``"categories"``,
            that is categories and missing values; or ``"none"``. Other values are represented by cells of an axis.

    Rows are float64 tensors: ``x`` of shape (n, features), with codes for categories, and ``context`` of shape
    (n, context columns). Missing values are NaN, and values that a column cannot have are infinite.

    Example:
        >>> size = Column("size", "number", "double", map="log", arguments={"offset": 0.0}, centre=1.0, scale=2.0)
        >>> preprocessor = Preprocessor([size])
        >>> preprocessor.locate(torch.tensor([[torch.e]], dtype=torch.float64))[1].start
        tensor([[0.]], dtype=torch.float64)
        >>> round(preprocessor.inverse(torch.zeros(1, 1)).item(), 5)
        2.71828
    """

    step: Tensor
    origin: Tensor
    last_step: Tensor
    on_grid: Tensor
    floor: Tensor
    ceiling: Tensor

    def __init__(self, columns: list[Column], levels: LevelKinds = "atoms") -> None:
        super().__init__()
        self.columns = columns
        self._level_kinds = levels
        self.features = [c for c in columns if c.role == "feature" and c.kind != "constant" and c.relation is None]
        #: The columns that are restored from others, each after its sources.
        self.restored = _topological_order([c for c in columns if c.relation is not None])
        self.context_columns = [c for c in columns if c.role == "context" and c.kind != "constant"]
        constants = [c for c in columns if c.role == "feature" and c.kind == "constant" and not c.format]
        rows = max((c.rows for c in self.features), default=0)
        #: Columns with a single value in all rows, and the log-probability of another; format 1 ignores them.
        self.constants, self.log_unseen = constants if rows else [], -math.log(rows + 2.0)
        #: The size of the context that users give.
        self.context_width = sum(c.width for c in self.context_columns)
        parts = _split_features(self.features, levels)
        with_levels, with_axis = zip(*parts, strict=True)
        #: The indices of the features with levels, and of those with an axis of normal scores; a feature may have both.
        self.level_features = [i for i, column in enumerate(with_levels) if column is not None]
        self.axis_features = [i for i, column in enumerate(with_axis) if column is not None]
        level_columns = [column for column in with_levels if column is not None]
        self.levels = Levels(level_columns) if level_columns else None
        #: The columns of the axes, without the atoms and missing values that have levels.
        self.axes = [column for column in with_axis if column is not None]
        #: The columns' maps to normal scores, without whitening.
        self.maps = columns_bijection(self.axes)
        self.whitening = Whitening(len(self.axes))
        self.context_maps = columns_bijection(self.context_columns) if self.context_columns else None
        grid = [[c.step, c.origin, round((c.high - c.origin) / c.step) if c.rounded else 0.0] for c in self.axes]
        names = ("step", "origin", "last_step")
        for name, values in zip(names, torch.tensor(grid, dtype=torch.float64).T, strict=True):
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("on_grid", torch.tensor([c.rounded for c in self.axes]), persistent=False)
        for name in ("floor", "ceiling"):
            limits = [getattr(c, name) for c in self.axes]
            self.register_buffer(name, torch.tensor(limits, dtype=torch.float64), persistent=False)
        #: The cells of values; None for a model of format 1, which scores a row at the middle of its cells.
        self.cells = Cells(self.axes, self.normal_scores) if all(c.rows for c in self.features) else None
        self._copies: dict[torch.device, Preprocessor] = {}

    @property
    def sizes(self) -> list[int]:
        """The number of levels of each feature with levels."""
        return [] if self.levels is None else self.levels.sizes

    @property
    def size(self) -> int:
        """The size of the flow's input: a code for each feature with levels, and a number for each axis."""
        return len(self.level_features) + len(self.axis_features)

    def on(self, device: torch.device) -> Preprocessor:
        """The preprocessor, or a copy of it, on a device."""
        if device == self.step.device:
            return self
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self).to(device)
        return self._copies[device]

    def normal_scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The normal scores of feature-major values of the axes, and the maps' log-derivatives; NaN outside a map."""
        ladj = torch.zeros_like(x)
        for layer in cast("Iterable[ElementwiseDataBijection]", self.maps):
            y = layer.value(x)
            ladj = ladj + layer.log_derivative(x, y)
            x = y
        # At the end of a logarithm's or logit's range, only the derivative is infinite: far values are clamped.
        return torch.where(ladj.isfinite(), x, torch.nan), ladj

    def locate(self, x: Tensor) -> tuple[LevelCodes, RowCells]:
        """The levels of rows (n, features), and their cells on the axes; points for models of format 1."""
        if self.levels is None:
            none = torch.zeros((len(x), 0), dtype=torch.long, device=x.device)
            zero = x.new_zeros(len(x))
            levels = LevelCodes(none, zero, none.bool(), none.bool())
        else:
            levels = self.levels.encode(x[:, self.level_features])
        values = x[:, self.axis_features].mT
        if self.cells is None:
            y, ladj = self.normal_scores(values)
            return levels, RowCells(y, torch.zeros_like(y), torch.where(y.isfinite(), ladj, 0.0).sum(0))
        if not self.level_features:
            return levels, self.cells.locate(values, self.normal_scores)
        unused = torch.zeros_like(x, dtype=torch.bool)
        unused[:, self.level_features] = ~levels.continuous
        return levels, self.cells.locate(values, self.normal_scores, unused[:, self.axis_features].mT)

    def prepare(self, x: Tensor) -> Tensor:
        """The level codes of rows, and the starts and widths of their cells, in which :meth:`encode` draws points."""
        parts = []
        for rows in x.split(_ROWS) if len(x) else [x]:
            levels, cells = self.locate(rows)
            parts.append(torch.cat([levels.codes.double(), cells.start.mT, cells.width.mT], dim=1))
        prepared = torch.cat(parts)
        self._check_finite(prepared)
        return prepared

    def _check_finite(self, prepared: Tensor) -> None:
        """Refuse values that a column's map sends to infinity."""
        _, start, width = self._unpack(prepared)
        bad = ~(start.isfinite() & width.isfinite()).all(0)
        if bool(bad.any()):
            column = self.axes[int(bad.int().argmax())]
            raise DataError(
                f"column {column.name!r} holds values that its map {column.map!r} sends to infinity: choose another "
                f"one, as with {options([], {column.table_column: 'linear'})}"
            )

    def initialize(self, x: Tensor, generator: torch.Generator) -> None:
        """Estimate the whitening from random points of the rows' cells."""
        _, start, width = self._unpack(self.prepare(x))
        noise = torch.rand(start.shape, generator=generator, dtype=torch.float64)
        self.whitening.initialize(draw_points(start, width, noise).mT, None)

    @torch.no_grad()
    def score_points(self, log_prob: Callable[[Tensor], Tensor], cells: RowCells) -> Tensor:
        r"""The log-density of rows in the table's units, from that of the whitened axes, ``log_prob`` of (n, axes).

        It is the log-mean over fixed quasi-random points :math:`z_k` of the rows' cells,

        .. math:: \log \frac1m \sum_k \exp\big( \log p(y_k) - \log \det L - \textstyle\sum_j \log \varphi(z_{kj})\big)
                  + \log \text{measure}, \quad y_k = L^{-1}(z_k - \mu),

        The sum is over the axes j on which the points follow the standard normal density φ within the cell.
        """
        if not bool(cells.width.any()):
            y, offset = self.points(cells, torch.zeros_like(cells.start))
            return log_prob(y) + offset
        scores = []
        for noise in fixed_points(len(self.axis_features)).to(cells.start.device):
            y, offset = self.points(cells, noise.unsqueeze(1))
            scores.append(log_prob(y) + offset)
        return torch.stack(scores).logsumexp(0) - math.log(len(scores))

    @torch.no_grad()
    def draw(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The flow's input (n, size) at a random point of each row's cells, and the log-density offset of the row.

        The flow's log-density plus the offset estimates the density of the row without bias, so its expectation is at
        most the log-density of the row (Jensen's inequality).
        """
        noise = torch.rand((len(x), len(self.axis_features)), generator=generator, dtype=torch.float64)
        if self.cells is None:
            x = x + self.step * (noise - 0.5)
        levels, cells = self.locate(x)
        y, offset = self.points(cells, noise.mT)
        return torch.cat([levels.codes.double(), y], dim=1), offset + levels.log_within

    def points(self, cells: RowCells, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened points (n, axes) of cells, and the offset from their log-density to that in the table's units."""
        z = draw_points(cells.start, cells.width, noise)
        ladj = self.whitening.log_determinant(z, z)
        return self.whitening.value(z).mT, ladj + cells.log_measure - log_weight(cells.width, z)

    def _unpack(self, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The codes, starts and widths of prepared rows."""
        axes = len(self.axis_features)
        codes, start, width = prepared.split([len(self.level_features), axes, axes], dim=1)
        return codes, start, width

    def log_relations(self, numbers: Mapping[str, Array]) -> Array:
        """The term of restored columns in a row's log-density, from the numbers of all columns.

        A value that contradicts the relation has the probability 1 / (n + 2) after n rows, spread over the column's
        range.
        """
        total = np.zeros(len(next(iter(numbers.values()))))
        for c in self.restored:
            assert c.relation is not None
            log_unseen = -math.log(c.rows + 2.0) - c.log_range
            total += np.where(c.relation.holds(numbers), math.log1p(-1 / (c.rows + 2.0)), log_unseen)
        return total

    def restore(self, numbers: dict[str, Array]) -> None:
        """Add the values of restored columns to the numbers of the others."""
        for c in self.restored:
            assert c.relation is not None
            values = c.relation.predict(numbers)
            if not c.missing:  # sources that never occurred together
                values = np.where(np.isnan(values), c.atoms[int(np.argmax(c.masses))] if c.atoms else c.low, values)
            if c.bounds != UNBOUNDED:
                values = np.clip(values, c.floor, c.ceiling)
            numbers[c.name] = values

    def impossible(self, numbers: Mapping[str, Array], complete: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have restored values outside of the columns' limits, or missing ones if rows are ``complete``."""
        wrong = np.zeros(len(next(iter(numbers.values()))), dtype=bool)
        for c in self.restored:
            if c.kind == "number":
                low, high = (c.low, c.high) if c.discrete else (c.floor, c.ceiling)
                slack = 1e-9 * max(abs(c.low), abs(c.high))
                wrong |= (numbers[c.name] < low - slack) | (numbers[c.name] > high + slack)
            if complete:
                wrong |= np.isnan(numbers[c.name])
        return wrong

    def inverse(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Rows in the table's units, from the flow's input (n, size); missing values are NaN.

        Values of a grid are rounded to it. The generator draws one atom of those that share a level.
        """
        codes, y = y[:, : len(self.level_features)].long(), y[:, len(self.level_features) :]
        z = self.whitening.inverse_value(y.double().mT)
        decoded = (self._from_scores(z) if self.cells is None else self.cells.decode(z, self._from_scores)).mT
        if self.levels is None:
            return decoded
        x = decoded.new_zeros((len(y), len(self.features)))
        x[:, self.axis_features] = decoded
        generator = seeded(0) if generator is None else generator
        values, continuous = self.levels.decode(codes, generator)
        for k, i in enumerate(self.level_features):
            if self._level_kinds == "atoms" and self.features[i].rounded and not self.features[i].discrete:
                rows = continuous[:, k]
                x[rows, i] = _move_off_atoms(x[rows, i], self.features[i], generator)
        x[:, self.level_features] = torch.where(continuous, x[:, self.level_features], values)
        return x

    def _from_scores(self, z: Tensor) -> Tensor:
        """The values of normal scores (axes, n), rounded to their grids."""
        x = self.maps.invert(z, None, CERTIFIED).x.mT
        steps = ((x - self.origin) / self.step).round().clamp(torch.zeros_like(self.last_step), self.last_step)
        x = torch.where(self.on_grid, self.origin + steps * self.step, x)
        return x.clamp(self.floor, self.ceiling).mT

    def context(self, values: Tensor) -> Tensor:
        """The flow's context in float64: numbers standardized, categories one-hot, and flags of missing numbers."""
        assert self.context_maps is not None
        standardized = values.mT
        for layer in cast("Iterable[ElementwiseDataBijection]", self.context_maps):
            standardized = layer.value(standardized)
        parts = []
        for i, c in enumerate(self.context_columns):
            column = values[:, i : i + 1]
            if c.kind == "category":
                parts.append((column == torch.arange(len(c.categories), device=values.device)).double())
            else:
                missing = column.isnan()
                parts.append(
                    standardized[i].unsqueeze(1).masked_fill(missing, 0.0)
                    if c.missing
                    else standardized[i].unsqueeze(1)
                )
                parts += [missing.double()] if c.missing else []
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def encode(self, prepared: Tensor, context: Tensor | None, generator: torch.Generator) -> Batch:
        """A training batch with fresh random points in the cells of rows from :meth:`prepare`, on their device.

        The noise is drawn on the generator's device: a CPU generator gives the same noise for all devices.
        """
        local = self.on(prepared.device)
        codes, start, width = local._unpack(prepared)
        noise = torch.rand(start.shape, generator=generator, dtype=prepared.dtype, device=generator.device)
        y = local.whitening.value(draw_points(start, width, noise.to(prepared.device)).mT).mT
        if self.level_features:
            y = torch.cat([codes, y], dim=1)
        return Batch(y.float(), None if context is None else local.context(context).float())

    @property
    def encoding(self) -> str:
        """Identifies how :meth:`encode` treats the columns, without statistics of rows, which may round differently."""
        fields = [[c.name, c.kind, c.role, c.map, c.rounded, c.digits, c.categories] for c in self.columns]
        users = [[f"{value:.6g}" for value in c.arguments.values()] for c in self.columns if c.map not in MAP_NAMES]
        return json.dumps([*fields, *users])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the whitening, as JSON."""
        columns = [c.as_dict() for c in self.columns]
        return {"columns": columns, "levels": self._level_kinds} if self.level_features else {"columns": columns}

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.whitening.mean, "factor": self.whitening.factor}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], tensors: dict[str, Tensor]) -> Preprocessor:
        """The preprocessor of :meth:`as_dict` and :meth:`tensors`; raises a ValueError if it is not invertible."""
        columns = [Column.from_dict(c) for c in fields["columns"]]
        names = [column.name for column in columns]
        if len(set(names)) < len(names):
            raise ValueError("two of its columns have the same name")
        mean, factor = tensors["mean"], tensors["factor"]
        preprocessor = cls(columns, fields.get("levels", "none"))
        size = len(preprocessor.axis_features)
        if not size or mean.shape != (size,) or factor.shape != (size, size):
            raise ValueError("the size of its linear map does not match its columns")
        if {mean.dtype, factor.dtype} != {torch.float64} or not bool(mean.isfinite().all() & factor.isfinite().all()):
            raise ValueError("its linear map must be finite and float64")
        if not bool((factor.diagonal() > 0).all()):
            raise ValueError("its linear map cannot be inverted")
        preprocessor.whitening.mean, preprocessor.whitening.factor = mean, factor
        return preprocessor


def _move_off_atoms(x: Tensor, column: Column, generator: torch.Generator) -> Tensor:
    """Draws from the continuous part of a grid, moved from atoms to the nearest other value, on a random side.

    Atoms are drawn by their levels alone; draws of the continuous part would add to their probability.
    """
    last = round((column.high - column.origin) / column.step)
    atoms = ((torch.tensor(column.atoms, dtype=torch.float64) - column.origin) / column.step).round().long()
    index = ((x - column.origin) / column.step).round().long()
    side = 2 * torch.randint(2, index.shape, generator=generator) - 1
    for _ in range(2 * len(atoms)):  # more only if the whole grid consists of atoms
        at = torch.isin(index, atoms)
        if not bool(at.any()):
            break
        side = torch.where((index + side < 0) | (index + side > last), -side, side)
        index = torch.where(at, (index + side).clamp(0, last), index)
    # Values that did not move keep their exact bits.
    moved = index != ((x - column.origin) / column.step).round().long()
    return torch.where(moved, column.origin + index * column.step, x)


def _split_features(features: list[Column], levels: LevelKinds) -> list[tuple[Column | None, Column | None]]:
    """For each feature the part with levels and the part with an axis; at least one feature has an axis."""
    parts = [_split_column(c, levels) for c in features]
    if features and not any(axis for _, axis in parts):
        parts[-1] = (None, features[-1])
    return parts


def _split_column(column: Column, levels: LevelKinds) -> tuple[Column | None, Column | None]:
    """The part of a column with levels, and the part with an axis."""
    if not column.rows or levels == "none" or not (column.atoms or column.missing):
        return None, column
    if levels == "atoms" or column.kind == "category":
        return column, None if column.discrete else replace(column, atoms=(), masses=(), missing=0.0)
    if not column.missing:
        return None, column
    masses = tuple(mass / (1 - column.missing) for mass in column.masses)
    return replace(column, atoms=(), masses=(), discrete=False), replace(column, masses=masses, missing=0.0)


def _topological_order(columns: list[Column]) -> list[Column]:
    """Restored columns, each after those that it is restored from; a ValueError if there is a cycle."""
    waiting, ordered = {c.name: c for c in columns}, []
    while waiting:
        ready = [c for c in waiting.values() if c.relation is not None and not waiting.keys() & set(c.relation.sources)]
        if not ready:
            raise ValueError("its columns are restored from each other")
        ordered += ready
        for column in ready:
            del waiting[column.name]
    return ordered
