"""The measure by which densities of different rows are compared, to rank them as anomalies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from ..bijections.base import CERTIFIED
from ..bijections.columns import ColumnMap, ElementwiseDataBijection, SelectedColumns
from .levels import Levels
from .preprocessing import Preprocessor


class CommonMeasure:
    r"""What to subtract from log-densities so that rows can be compared.

    Densities depend on units, and probabilities do not: next to a column in kilometres, a value that is an atom has
    another rank than in metres, and on a linear scale a small value of a column with a heavy tail looks likely. So a
    row is compared by its density with respect to

    - for numbers, the scale of the column's map m, such as the logarithm: :math:`\log p(x) - \log m'(x)`;
    - for atoms among real numbers and for missing values, their probability divided by the width :math:`e^H`, where H
      is the differential entropy of the column's continuous part on that scale;
    - for values of columns without a continuous part, their probability.

    Tables of numbers without maps and atoms have the same ranks as by their log-density.

    Example:
        >>> from sinuflow.data.columns import Column
        >>> size = Column("size", "number", "double", map="log", arguments={"offset": 0.0}, low=1.0, high=9.0, rows=50)
        >>> measure = CommonMeasure(Preprocessor([size]))
        >>> measure.log_terms(torch.tensor([[1.0], [2.0]], dtype=torch.float64))  # log 1 / x
        tensor([ 0.0000, -0.6931], dtype=torch.float64)
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._preprocessor = preprocessor
        features = preprocessor.features
        self._with_atoms = [i for i, c in enumerate(features) if c.rows and c.atoms]
        self._levels = Levels([features[i] for i in self._with_atoms]) if self._with_atoms else None
        #: For atoms of columns: the width, or NaN if all values of the column have densities.
        self._atoms = torch.full((len(features),), torch.nan, dtype=torch.float64)
        self._missing = torch.zeros(len(features), dtype=torch.float64)
        entropies = dict(zip(preprocessor.placed, self._entropies().tolist(), strict=True))
        for i, column in enumerate(features):
            if column.discrete:
                self._atoms[i] = -math.log(column.cell) if column.cell and column.kind == "number" else 0.0
            else:
                self._missing[i] = entropies[i]
                if not column.cell:
                    self._atoms[i] = entropies[i]

    @torch.no_grad()
    def log_terms(self, x: Tensor) -> Tensor:
        """The sum over the columns for each row (n, features) of numbers, to be subtracted from its log-density."""
        preprocessor = self._preprocessor
        terms = torch.zeros_like(x)
        placed = torch.where(x.isfinite(), x, 1.0)[:, preprocessor.placed].mT
        terms[:, preprocessor.placed] = self._log_slopes(placed).nan_to_num(0.0, 0.0, 0.0).mT
        if self._levels is not None:
            continuous = torch.ones_like(x, dtype=torch.bool)
            continuous[:, self._with_atoms] = self._levels.locate(x[:, self._with_atoms]).continuous
            terms = torch.where(~continuous & self._atoms.isfinite(), self._atoms.nan_to_num(), terms)
        return torch.where(x.isnan(), self._missing, torch.where(x.isinf(), 0.0, terms)).sum(1)

    def _log_slopes(self, x: Tensor) -> Tensor:
        """The log-derivatives of the columns' maps at feature-major values, without standardization and splines."""
        total = torch.zeros_like(x)
        for layer in cast("Iterable[ElementwiseDataBijection]", self._preprocessor.maps):
            y = layer.value(x)
            inner = layer.bijection if isinstance(layer, SelectedColumns) else layer
            if isinstance(inner, ColumnMap):
                total = total + layer.log_derivative(x, y)
            x = y
        return total

    @torch.no_grad()
    def _entropies(self) -> Tensor:
        """The entropy of each placed column on the scale of its map, by a grid of normal scores."""
        scores = torch.special.ndtri(torch.linspace(0, 1, 130, dtype=torch.float64)[1:-1])
        preprocessor = self._preprocessor
        x = preprocessor.maps.invert(scores.expand(len(preprocessor.placed), -1), None, CERTIFIED).x
        slopes = preprocessor.curve(x)[1] - self._log_slopes(x)
        return 0.5 * math.log(2 * math.pi * math.e) - slopes.mean(1)
