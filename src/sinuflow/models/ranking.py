"""The anomaly score of rows, by which they are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Column, Preprocessor
from ..data.kernel_density import KernelDensity
from ..data.reference_measure import ReferenceMeasure
from ..data.sources import seeded

#: The maximum number of training rows from which the spreads are estimated.
_MAX_ROWS = 2_000
#: The spread of a term is the distance from its median to this quantile, about a standard deviation, on the side of
#: less likely rows.
_QUANTILE = 0.84

#: Returns the log-density of rows of numbers, given their context.
LogDensity = Callable[[Tensor, "Tensor | None"], Tensor]


class RankedRows(NamedTuple):
    """Rows of numbers."""

    x: Tensor  # (n, features)
    restored: Tensor  # (n, columns restored from others)
    context: Tensor | None  # (n, context columns)

    @property
    def all_features(self) -> Tensor:
        """The features, then the restored columns."""
        return torch.cat([self.x, self.restored], dim=1)

    def select(self, rows: Tensor) -> RankedRows:
        return RankedRows(self.x[rows], self.restored[rows], None if self.context is None else self.context[rows])


class Ranking:
    """The function behind :meth:`TableModel.anomaly_score <sinuflow.models.table.TableModel.anomaly_score>`.

    The kernel density is also of the columns that are restored from others: a row may contradict no relation, and yet
    have a value there that is far from those of all training rows.

    Args:
        preprocessor: the preprocessor of the model.
        kernel_density: an estimate from the training rows.
        spreads: (2,), the spreads of the flow's and of the kernel log-density among training rows.
    """

    def __init__(self, preprocessor: Preprocessor, kernel_density: KernelDensity, spreads: Tensor) -> None:
        if (
            spreads.shape != (2,)
            or spreads.dtype != torch.float64
            or not bool((spreads.isfinite() & (spreads > 0)).all())
        ):
            raise ValueError("the spreads of its anomaly score must be two float64 numbers above 0")
        self._reference = ReferenceMeasure(preprocessor)
        self._kernel_density, self._spreads = kernel_density, spreads

    @classmethod
    def fit(cls, preprocessor: Preprocessor, rows: RankedRows, log_density: LogDensity) -> Ranking:
        """Fit to training rows, and the log-density of the model as a function of features and context."""
        kernel_density = KernelDensity.fit(*_columns(preprocessor), rows.all_features, rows.context, seeded(0))
        ranking = cls(preprocessor, kernel_density, torch.ones(2, dtype=torch.float64))
        rows = rows.select(torch.randperm(len(rows.x), generator=seeded(0, 1))[:_MAX_ROWS])
        terms = ranking.terms(rows, log_density(rows.x, rows.context)).nan_to_num()
        quantiles = torch.quantile(-terms, torch.tensor([0.5, _QUANTILE], dtype=torch.float64), dim=1)
        spreads = quantiles[1] - quantiles[0]
        return cls(preprocessor, kernel_density, torch.where(spreads > 0, spreads, 1.0))

    @classmethod
    def from_tensors(cls, preprocessor: Preprocessor, tensors: Mapping[str, Tensor]) -> Ranking:
        """Restore from :meth:`tensors`; raises a ValueError if they do not fit the columns."""
        parameters = {name: t for name, t in tensors.items() if name != "spreads"}
        kernel_density = KernelDensity(*_columns(preprocessor), parameters)
        return cls(preprocessor, kernel_density, tensors.get("spreads", torch.zeros(0)))

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, as the model file stores them."""
        return {**self._kernel_density.tensors(), "spreads": self._spreads}

    def terms(self, rows: RankedRows, log_density: Tensor) -> Tensor:
        """Log-densities (2, n) of rows: the flow's, relative to the reference measure, and the kernel estimate's."""
        relative = log_density - self._reference.log_density(rows.x)
        return torch.stack([relative, self._kernel_density.log_prob(rows.all_features, rows.context)])

    def __call__(self, rows: RankedRows, log_density: Tensor) -> Tensor:
        """The anomaly score (n,): minus the sum of the terms, each divided by its spread."""
        return -(self.terms(rows, log_density) / self._spreads.unsqueeze(1)).sum(0)


def _columns(preprocessor: Preprocessor) -> tuple[list[Column], list[Column]]:
    """The columns of the kernel density, and of its context."""
    return [*preprocessor.features, *preprocessor.restored], preprocessor.context_columns
