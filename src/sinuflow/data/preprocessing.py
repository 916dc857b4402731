"""From rows of numbers in a table's units to the flow's input, and back."""

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
from .cells import Cells, Located, draw_points, fixed_points, log_weight
from .columns import MAP_NAMES, UNBOUNDED, Column, columns_bijection
from .levels import Leveled, Levels
from .numbers import Array
from .refusals import options
from .sources import Batch, seeded

#: What has levels: atoms, categories and missing values, or the latter two, or nothing.
LevelsOf = Literal["atoms", "categories", "none"]
#: Rows whose cells are located at a time.
_ROWS = 65_536


class Preprocessor(Float64Module):
    r"""From the feature columns of a table to the flow's input, and the encoding of context columns.

    Columns with atoms, categories or missing values have levels (:mod:`sinuflow.data.levels`), whose codes come first.
    The other values follow: the columns' own maps (:mod:`sinuflow.data.columns`) lead to normal scores, on whose axis
    every value owns a point or a cell (:mod:`sinuflow.data.cells`); then comes whitening, :math:`z \to L^{-1}(z -
    \mu)`. The flow, which starts as the identity, then starts from a Gaussian copula. All buffers are float64; the
    result is rounded to the flow's dtype only at the end.

    ``levels`` says what has levels: ``"atoms"``, categories and missing values; or the latter two alone
    (``"categories"``); or ``"none"``. What has none owns a part of an axis.

    Rows come as float64 tensors: ``x`` of shape (n, features), with codes for categories, and ``context`` of shape
    (n, context columns). ``columns`` are all columns of the table, also constant ones, which are in neither.

    Missing values are NaN, and values that a column cannot have, infinite.

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
    last: Tensor
    on_grid: Tensor
    floor: Tensor
    ceiling: Tensor

    def __init__(self, columns: list[Column], levels: LevelsOf = "atoms") -> None:
        super().__init__()
        self.columns = columns
        self._levels_of = levels
        self.features = [c for c in columns if c.role == "feature" and c.kind != "constant" and c.relation is None]
        #: The columns that are restored from others.
        self.restored = _in_order([c for c in columns if c.relation is not None])
        self.context_columns = [c for c in columns if c.role == "context" and c.kind != "constant"]
        constants = [c for c in columns if c.role == "feature" and c.kind == "constant" and not c.format]
        rows = max((c.rows for c in self.features), default=0)
        #: Columns with a single value in all rows, and the log-probability of another; models of format 1 ignore them.
        self.constants, self.log_surprise = constants if rows else [], -math.log(rows + 2.0)
        #: The size of the context that users give.
        self.context_width = sum(c.width for c in self.context_columns)
        #: Which features have levels, and which a place on an axis of normal scores.
        parts = _divide(self.features, levels)
        self.leveled, self.placed = ([i for i, c in enumerate(side) if c] for side in zip(*parts, strict=True))
        leveled, axes = ([c for c in side if c] for side in zip(*parts, strict=True))
        self.levels = Levels(leveled) if leveled else None
        #: The columns of the axes: of a leveled one, the part without levels.
        self.axes = axes
        #: The columns' own maps, without whitening.
        self.maps = columns_bijection(self.axes)
        self.whitening = Whitening(len(self.axes))
        self.context_maps = columns_bijection(self.context_columns) if self.context_columns else None
        grid = [[c.step, c.origin, round((c.high - c.origin) / c.step) if c.rounded else 0.0] for c in self.axes]
        for name, values in zip(("step", "origin", "last"), torch.tensor(grid, dtype=torch.float64).T, strict=True):
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("on_grid", torch.tensor([c.rounded for c in self.axes]), persistent=False)
        for name in ("floor", "ceiling"):
            limits = [getattr(c, name) for c in self.axes]
            self.register_buffer(name, torch.tensor(limits, dtype=torch.float64), persistent=False)
        #: The cells of values; None for a model of format 1, which scores a row at the middle of its cells.
        self.cells = Cells(self.axes, self.curve) if all(c.rows for c in self.features) else None
        self._copies: dict[torch.device, Preprocessor] = {}

    @property
    def sizes(self) -> list[int]:
        """The number of levels of each leveled feature."""
        return [] if self.levels is None else self.levels.sizes

    @property
    def size(self) -> int:
        """The size of the flow's input: a code for each leveled feature, and a number for each placed one."""
        return len(self.leveled) + len(self.placed)

    def on(self, device: torch.device) -> Preprocessor:
        """The preprocessor, or a copy of it, on a device."""
        if device == self.step.device:
            return self
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self).to(device)
        return self._copies[device]

    def curve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The placed columns' maps of feature-major values, and their log-derivatives; NaN where a map ends."""
        ladj = torch.zeros_like(x)
        for layer in cast("Iterable[ElementwiseDataBijection]", self.maps):
            y = layer.value(x)
            ladj = ladj + layer.log_derivative(x, y)
            x = y
        # At the end of a logarithm's or logit's range, only the derivative is infinite: far values are clamped.
        return torch.where(ladj.isfinite(), x, torch.nan), ladj

    def locate(self, x: Tensor) -> tuple[Leveled, Located]:
        """The levels of rows (n, features), and the cells of the placed features; points for models of format 1."""
        if self.levels is None:
            none = torch.zeros((len(x), 0), dtype=torch.long, device=x.device)
            zero = x.new_zeros(len(x))
            leveled = Leveled(none, zero, none.bool(), none.bool())
        else:
            leveled = self.levels.locate(x[:, self.leveled])
        values = x[:, self.placed].mT
        if self.cells is None:
            y, ladj = self.curve(values)
            return leveled, Located(y, torch.zeros_like(y), torch.where(y.isfinite(), ladj, 0.0).sum(0))
        if not self.leveled:
            return leveled, self.cells.locate(values, self.curve)
        absent = torch.zeros_like(x, dtype=torch.bool)
        absent[:, self.leveled] = ~leveled.continuous
        return leveled, self.cells.locate(values, self.curve, absent[:, self.placed].mT)

    def prepare(self, x: Tensor) -> Tensor:
        """The levels of rows, and the starts and widths of cells, in which :meth:`encode` draws points."""
        parts = []
        for rows in x.split(_ROWS) if len(x) else [x]:
            leveled, located = self.locate(rows)
            parts.append(torch.cat([leveled.codes.double(), located.start.mT, located.width.mT], dim=1))
        cells = torch.cat(parts)
        self._check_finite(cells)
        return cells

    def _check_finite(self, cells: Tensor) -> None:
        """Refuse values that a column's map sends to infinity: no flow could be trained on them."""
        _, start, width = self._split(cells)
        bad = ~(start.isfinite() & width.isfinite()).all(0)
        if bool(bad.any()):
            column = self.axes[int(bad.int().argmax())]
            raise DataError(
                f"column {column.name!r} holds values that its map {column.map!r} sends to infinity: choose another "
                f"one, as with {options([], {column.table_column: 'linear'})}"
            )

    def initialize(self, x: Tensor, generator: torch.Generator) -> None:
        """Estimate the whitening from points of the cells of rows."""
        _, start, width = self._split(self.prepare(x))
        noise = torch.rand(start.shape, generator=generator, dtype=torch.float64)
        self.whitening.initialize(draw_points(start, width, noise).mT, None)

    @torch.no_grad()
    def score_points(self, log_prob: Callable[[Tensor], Tensor], located: Located) -> Tensor:
        r"""The log-density of rows in the table's units, for that of the placed features, (n, placed) to (n,).

        The log-mean over the fixed points :math:`u_k` of the rows' cells,

        .. math:: \log \frac1m \sum_k \exp\big( \log p(y_k) - \log \det L - \textstyle\sum_j \log \varphi(z_{kj})\big)
                  + \log \text{measure}, \quad y_k = L^{-1}(z_k - \mu),

        with the sum over the columns j whose cells are probabilities, so that points were drawn by φ.
        """
        if not bool(located.width.any()):
            y, offset = self.points(located, torch.zeros_like(located.start))
            return log_prob(y) + offset
        scores = []
        for noise in fixed_points(len(self.placed)).to(located.start.device):
            y, offset = self.points(located, noise.unsqueeze(1))
            scores.append(log_prob(y) + offset)
        return torch.stack(scores).logsumexp(0) - math.log(len(scores))

    @torch.no_grad()
    def draw(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The flow's input (n, size) at one random point of each row's cells, and what to add to its log-density.

        The sum estimates the row's density without bias, so its expected logarithm is at most that of
        :meth:`score_points`.
        """
        noise = torch.rand((len(x), len(self.placed)), generator=generator, dtype=torch.float64)
        if self.cells is None:
            x = x + self.step * (noise - 0.5)
        leveled, located = self.locate(x)
        y, offset = self.points(located, noise.mT)
        return torch.cat([leveled.codes.double(), y], dim=1), offset + leveled.within

    def points(self, located: Located, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The placed features at points of cells, and what to add to their log-density for that of the table."""
        z = draw_points(located.start, located.width, noise)
        step = self.whitening.log_determinant(z, z)
        return self.whitening.value(z).mT, step + located.log_measure - log_weight(located.width, z)

    def _split(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The codes, starts and widths of prepared rows."""
        codes, start, width = cells.split([len(self.leveled), len(self.placed), len(self.placed)], dim=1)
        return codes, start, width

    def log_relations(self, numbers: Mapping[str, Array]) -> Array:
        """The part of a row's log-density that belongs to restored columns, from the numbers of all columns.

        A value that contradicts the relation has the probability 1 / (n + 2), spread over the column's range.
        """
        total = np.zeros(len(next(iter(numbers.values()))))
        for c in self.restored:
            assert c.relation is not None
            surprise = -math.log(c.rows + 2.0) - c.log_spread
            total += np.where(c.relation.holds(numbers), math.log1p(-1 / (c.rows + 2.0)), surprise)
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
        """Rows whose restored columns have values that they cannot have, or are missing if rows are ``complete``."""
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
        """Rows in the table's units of the flow's input (n, size); missing values are NaN.

        Values of a grid are rounded to it. The generator draws the values of levels that several of them share.
        """
        codes, y = y[:, : len(self.leveled)].long(), y[:, len(self.leveled) :]
        z = self.whitening.inverse_value(y.double().mT)
        placed = (self._from_scores(z) if self.cells is None else self.cells.fold(z, self._from_scores)).mT
        if self.levels is None:
            return placed
        x = placed.new_zeros((len(y), len(self.features)))
        x[:, self.placed] = placed
        generator = seeded(0) if generator is None else generator
        values, continuous = self.levels.values(codes, generator)
        for k, i in enumerate(self.leveled):
            if self._levels_of == "atoms" and self.features[i].rounded and not self.features[i].discrete:
                rows = continuous[:, k]
                x[rows, i] = _off_atoms(x[rows, i], self.features[i], generator)
        x[:, self.leveled] = torch.where(continuous, x[:, self.leveled], values)
        return x

    def _from_scores(self, z: Tensor) -> Tensor:
        x = self.maps.invert(z, None, CERTIFIED).x.mT
        steps = ((x - self.origin) / self.step).round().clamp(torch.zeros_like(self.last), self.last)
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
    def encode(self, cells: Tensor, context: Tensor | None, generator: torch.Generator) -> Batch:
        """A training batch on the device of the :meth:`prepared <prepare>` cells, with fresh points in them.

        The noise is drawn on the generator's device, so that one of the CPU gives the same noise for any device.
        """
        own = self.on(cells.device)
        codes, start, width = own._split(cells)
        noise = torch.rand(start.shape, generator=generator, dtype=cells.dtype, device=generator.device)
        y = own.whitening.value(draw_points(start, width, noise.to(cells.device)).mT).mT
        if self.leveled:
            y = torch.cat([codes, y], dim=1)
        return Batch(y.float(), None if context is None else own.context(context).float())

    @property
    def encoding(self) -> str:
        """How :meth:`encode` treats each column, without statistics of the rows, which may round differently."""
        fields = [[c.name, c.kind, c.role, c.map, c.rounded, c.digits, c.categories] for c in self.columns]
        users = [[f"{value:.6g}" for value in c.arguments.values()] for c in self.columns if c.map not in MAP_NAMES]
        return json.dumps([*fields, *users])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the whitening, as JSON."""
        columns = [c.as_dict() for c in self.columns]
        return {"columns": columns, "levels": self._levels_of} if self.leveled else {"columns": columns}

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
        size = len(preprocessor.placed)
        if not size or mean.shape != (size,) or factor.shape != (size, size):
            raise ValueError("the size of its linear map does not match its columns")
        if {mean.dtype, factor.dtype} != {torch.float64} or not bool(mean.isfinite().all() & factor.isfinite().all()):
            raise ValueError("its linear map must be finite and float64")
        if not bool((factor.diagonal() > 0).all()):
            raise ValueError("its linear map cannot be inverted")
        preprocessor.whitening.mean, preprocessor.whitening.factor = mean, factor
        return preprocessor


def _off_atoms(x: Tensor, column: Column, generator: torch.Generator) -> Tensor:
    """Draws of a grid's continuous part; those at an atom move to the nearest other value, on a random side.

    The probability of an atom is that of its level alone: otherwise it would be drawn too often.
    """
    last = round((column.high - column.origin) / column.step)
    atoms = ((torch.tensor(column.atoms, dtype=torch.float64) - column.origin) / column.step).round().long()
    place = ((x - column.origin) / column.step).round().long()
    side = 2 * torch.randint(2, place.shape, generator=generator) - 1
    for _ in range(2 * len(atoms)):  # more only if the whole grid consists of atoms
        at = torch.isin(place, atoms)
        if not bool(at.any()):
            break
        side = torch.where((place + side < 0) | (place + side > last), -side, side)
        place = torch.where(at, (place + side).clamp(0, last), place)
    # Not those that stayed, which may be rounded otherwise.
    moved = place != ((x - column.origin) / column.step).round().long()
    return torch.where(moved, column.origin + place * column.step, x)


def _divide(features: list[Column], levels: LevelsOf) -> list[tuple[Column | None, Column | None]]:
    """For each feature the part with levels and the part on an axis; at least one feature has the latter."""
    parts = [_parts(c, levels) for c in features]
    if features and not any(axis for _, axis in parts):
        parts[-1] = (None, features[-1])
    return parts


def _parts(column: Column, levels: LevelsOf) -> tuple[Column | None, Column | None]:
    """The part of a column with levels, and the part on an axis."""
    if not column.rows or levels == "none" or not (column.atoms or column.missing):
        return None, column
    if levels == "atoms" or column.kind == "category":
        return column, None if column.discrete else replace(column, atoms=(), masses=(), missing=0.0)
    if not column.missing:
        return None, column
    masses = tuple(mass / (1 - column.missing) for mass in column.masses)
    return replace(column, atoms=(), masses=(), discrete=False), replace(column, masses=masses, missing=0.0)


def _in_order(columns: list[Column]) -> list[Column]:
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
