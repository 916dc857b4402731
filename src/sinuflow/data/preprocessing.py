"""From rows of numbers in a table's units to the flow's input, and back."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..bijections.base import CERTIFIED
from ..bijections.columns import ElementwiseDataBijection, Float64Module
from ..bijections.whitening import Whitening
from .cells import Cells, Located, draw_points, fixed_points, log_weight
from .columns import MAP_NAMES, Column, columns_bijection
from .numbers import Array
from .sources import Batch

#: Rows whose cells are located at a time.
_ROWS = 65_536


class Preprocessor(Float64Module):
    r"""From the feature columns of a table to the flow's input, and the encoding of context columns.

    The columns' own maps (:mod:`sinuflow.data.columns`) lead to normal scores, on whose axis every value owns a point
    or a cell (:mod:`sinuflow.data.cells`); then comes whitening, :math:`z \to L^{-1}(z - \mu)`. The flow, which starts
    as the identity, then starts from a Gaussian copula. All buffers are float64; the result is rounded to the flow's
    dtype only at the end.

    Rows come as float64 tensors: ``x`` of shape (n, features), with codes for categories, and ``context`` of shape
    (n, context columns). ``columns`` are all columns of the table, also constant ones, which are in neither.

    Missing values are NaN, and values that a column cannot have, infinite.

    Example:
        >>> size = Column("size", "number", "double", map="log", arguments={"offset": 0.0}, centre=1.0, scale=2.0)
        >>> preprocessor = Preprocessor([size])
        >>> preprocessor.locate(torch.tensor([[torch.e]], dtype=torch.float64)).start
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

    def __init__(self, columns: list[Column]) -> None:
        super().__init__()
        self.columns = columns
        self.features = [c for c in columns if c.role == "feature" and c.kind != "constant" and c.relation is None]
        #: The columns that are restored from others.
        self.restored = _in_order([c for c in columns if c.relation is not None])
        self.context_columns = [c for c in columns if c.role == "context" and c.kind != "constant"]
        #: The size of the flow's context.
        self.context_width = sum(c.width for c in self.context_columns)
        #: The columns' own maps, without whitening.
        self.maps = columns_bijection(self.features)
        self.whitening = Whitening(len(self.features))
        self.context_maps = columns_bijection(self.context_columns) if self.context_columns else None
        grid = [[c.step, c.origin, round((c.high - c.origin) / c.step) if c.rounded else 0.0] for c in self.features]
        for name, values in zip(("step", "origin", "last"), torch.tensor(grid, dtype=torch.float64).T, strict=True):
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("on_grid", torch.tensor([c.rounded for c in self.features]), persistent=False)
        for name in ("floor", "ceiling"):
            limits = [getattr(c, name) for c in self.features]
            self.register_buffer(name, torch.tensor(limits, dtype=torch.float64), persistent=False)
        #: The cells of values; None for a model of format 1, which scores a row at the middle of its cells.
        self.cells = Cells(self.features, self.curve) if all(c.rows for c in self.features) else None
        self._copies: dict[torch.device, Preprocessor] = {}

    def on(self, device: torch.device) -> Preprocessor:
        """The preprocessor, or a copy of it, on a device."""
        if device == self.step.device:
            return self
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self).to(device)
        return self._copies[device]

    def curve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The columns' maps of feature-major values, and their log-derivatives; NaN outside of a map."""
        ladj = torch.zeros_like(x)
        for layer in cast("Iterable[ElementwiseDataBijection]", self.maps):
            y = layer.value(x)
            ladj = ladj + layer.log_derivative(x, y)
            x = y
        # At the end of a logarithm's or logit's range, only the derivative is infinite: far values are clamped.
        return torch.where(ladj < torch.inf, x, torch.nan), ladj

    def locate(self, x: Tensor) -> Located:
        """The cells of rows (n, features), feature-major: points for models of format 1."""
        x = x.mT
        if self.cells is None:
            y, ladj = self.curve(x)
            return Located(y, torch.zeros_like(y), torch.where(y.isfinite(), ladj, 0.0).sum(0))
        return self.cells.locate(x, self.curve)

    def prepare(self, x: Tensor) -> Tensor:
        """The starts and widths of the cells of rows, (n, 2 features), in which :meth:`encode` draws points."""
        located = [self.locate(part) for part in x.split(_ROWS)] or [self.locate(x)]
        return torch.cat([torch.cat([part.start, part.width]).mT for part in located])

    def initialize(self, x: Tensor, generator: torch.Generator) -> None:
        """Estimate the whitening from points of the cells of rows."""
        cells, size = self.prepare(x), len(self.features)
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64)
        self.whitening.initialize(draw_points(cells[:, :size], cells[:, size:], noise).mT, None)

    @torch.no_grad()
    def score_points(self, log_prob: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        r"""The log-density of rows in the table's units, for that of the flow's input, (n, features) to (n,).

        The log-mean over the fixed points :math:`u_k` of the rows' cells,

        .. math:: \log \frac1m \sum_k \exp\big( \log p(y_k) - \log \det L - \textstyle\sum_j \log \varphi(z_{kj})\big)
                  + \log \text{measure}, \quad y_k = L^{-1}(z_k - \mu),

        with the sum over the columns j whose cells are probabilities, so that points were drawn by φ.
        """
        located = self.locate(x)
        if not bool(located.width.any()):
            y, offset = self._at(located, torch.zeros_like(located.start))
            return log_prob(y) + offset
        scores = []
        for noise in fixed_points(len(self.features)).to(x.device):
            y, offset = self._at(located, noise.unsqueeze(1))
            scores.append(log_prob(y) + offset)
        return torch.stack(scores).logsumexp(0) - math.log(len(scores))

    @torch.no_grad()
    def draw(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The flow's input (n, features) at one random point of each row's cells, and what to add to its log-density.

        The sum estimates the row's density without bias, so its expected logarithm is at most :meth:`score_points`.
        """
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64)
        if self.cells is None:
            x = x + self.step * (noise - 0.5)
        return self._at(self.locate(x), noise.mT)

    def _at(self, located: Located, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The flow's input at points of cells, and what to add to its log-density for that of the table's units."""
        z = draw_points(located.start, located.width, noise)
        step = self.whitening.log_determinant(z, z)
        return self.whitening.value(z).mT, step + located.log_measure - log_weight(located.width, z)

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
            numbers[c.name] = values

    def inverse(self, y: Tensor) -> Tensor:
        """Rows in the table's units; values of a grid are rounded to it, and a missing value is NaN."""
        z = self.whitening.inverse_value(y.double().mT)
        x = self._from_scores(z) if self.cells is None else self.cells.fold(z, self._from_scores)
        return x.mT

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
        own, size = self.on(cells.device), len(self.features)
        noise = torch.rand((len(cells), size), generator=generator, dtype=cells.dtype, device=generator.device)
        z = draw_points(cells[:, :size], cells[:, size:], noise.to(cells.device))
        y = own.whitening.value(z.mT)
        return Batch(y.mT.float(), None if context is None else own.context(context).float())

    @property
    def encoding(self) -> str:
        """How :meth:`encode` treats each column, without statistics of the rows, which may round differently."""
        fields = [[c.name, c.kind, c.role, c.map, c.rounded, c.digits, c.categories] for c in self.columns]
        users = [[f"{value:.6g}" for value in c.arguments.values()] for c in self.columns if c.map not in MAP_NAMES]
        return json.dumps([*fields, *users])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the whitening, as JSON."""
        return {"columns": [c.as_dict() for c in self.columns]}

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.whitening.mean, "factor": self.whitening.factor}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], tensors: dict[str, Tensor]) -> Preprocessor:
        """The preprocessor of :meth:`as_dict` and :meth:`tensors`; raises a ValueError if it is not invertible."""
        columns = [Column.from_dict(c) for c in fields["columns"]]
        names = [column.name for column in columns]
        if len(set(names)) < len(names):
            raise ValueError("two of its columns have the same name")
        size = sum(c.role == "feature" and c.kind != "constant" and c.relation is None for c in columns)
        mean, factor = tensors["mean"], tensors["factor"]
        if not size or mean.shape != (size,) or factor.shape != (size, size):
            raise ValueError("the size of its linear map does not match its columns")
        if {mean.dtype, factor.dtype} != {torch.float64} or not bool(mean.isfinite().all() & factor.isfinite().all()):
            raise ValueError("its linear map must be finite and float64")
        if not bool((factor.diagonal() > 0).all()):
            raise ValueError("its linear map cannot be inverted")
        preprocessor = cls(columns)
        preprocessor.whitening.mean, preprocessor.whitening.factor = mean, factor
        return preprocessor


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
