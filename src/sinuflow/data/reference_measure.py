"""The reference measure of the densities by which rows are ranked as anomalies."""

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


class ReferenceMeasure:
    r"""A reference measure that does not depend on the units of a table's columns.

    Densities depend on units, and probabilities do not. So the rank of a row with an atom, among rows without, changes
    if a column in kilometres is converted to metres; and densities on a linear scale favour the small values of a
    column with a heavy tail. The density of a row with respect to this measure has neither problem. It is the product
    over the columns of

    - for numbers, the density on the scale of the column's map m, such as the logarithm: :math:`p(x) / m'(x)`;
    - for atoms among real numbers and for missing values, the probability divided by :math:`e^H`, where H is the
      differential entropy of the column's continuous part on that scale;
    - for values of columns without a continuous part, the probability.

    Rows of numbers without maps and atoms have the same ranks as by their log-density.

    Example:
        >>> from sinuflow.data.columns import Column
        >>> size = Column("size", "number", "double", map="log", arguments={"offset": 0.0}, low=1.0, high=9.0, rows=50)
        >>> measure = ReferenceMeasure(Preprocessor([size]))
        >>> measure.log_density(torch.tensor([[1.0], [2.0]], dtype=torch.float64))  # log 1 / x
        tensor([ 0.0000, -0.6931], dtype=torch.float64)
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._preprocessor = preprocessor
        features = preprocessor.features
        self._with_atoms = [i for i, c in enumerate(features) if c.rows and c.atoms]
        self._levels = Levels([features[i] for i in self._with_atoms]) if self._with_atoms else None
        #: The term of each column's atoms, or NaN if all values of the column have densities; that of missing values.
        self._atom_terms = torch.full((len(features),), torch.nan, dtype=torch.float64)
        self._missing_terms = torch.zeros(len(features), dtype=torch.float64)
        entropies = dict(zip(preprocessor.axis_features, self._entropies().tolist(), strict=True))
        for i, column in enumerate(features):
            if column.discrete:
                self._atom_terms[i] = -math.log(column.cell) if column.cell and column.kind == "number" else 0.0
            else:
                self._missing_terms[i] = entropies[i]
                if not column.cell:
                    self._atom_terms[i] = entropies[i]

    @torch.no_grad()
    def log_density(self, x: Tensor) -> Tensor:
        """The log-density (n,) of the measure in the table's units; subtract it from that of the rows (n, features)."""
        preprocessor = self._preprocessor
        terms = torch.zeros_like(x)
        axes = preprocessor.axis_features
        terms[:, axes] = self._log_slopes(torch.where(x.isfinite(), x, 1.0)[:, axes].mT).nan_to_num(0.0, 0.0, 0.0).mT
        if self._levels is not None:
            continuous = torch.ones_like(x, dtype=torch.bool)
            continuous[:, self._with_atoms] = self._levels.encode(x[:, self._with_atoms]).continuous
            terms = torch.where(~continuous & self._atom_terms.isfinite(), self._atom_terms.nan_to_num(), terms)
        return torch.where(x.isnan(), self._missing_terms, torch.where(x.isinf(), 0.0, terms)).sum(1)

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
        """The entropy of each axis' column on the scale of its map, by quadrature over normal scores."""
        scores = torch.special.ndtri(torch.linspace(0, 1, 130, dtype=torch.float64)[1:-1])
        preprocessor = self._preprocessor
        x = preprocessor.maps.invert(scores.expand(len(preprocessor.axis_features), -1), None, CERTIFIED).x
        slopes = preprocessor.normal_scores(x)[1] - self._log_slopes(x)
        return 0.5 * math.log(2 * math.pi * math.e) - slopes.mean(1)
