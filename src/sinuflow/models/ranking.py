"""How the log-densities of rows become comparable, to rank the rows as anomalies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Column, Preprocessor
from ..data.common_measure import CommonMeasure
from ..data.kernel_density import KernelDensity
from ..data.sources import seeded

#: The most training rows from which the spreads are estimated.
_ROWS = 2_000
#: The spread is the distance from the median to this quantile of the less likely rows, about a standard deviation.
_QUANTILE = 0.84

#: The log-density of rows of numbers, and of their context.
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
    """The terms of minus :meth:`TableModel.anomaly_score <sinuflow.models.table.TableModel.anomaly_score>`.

    The kernel density is also of the columns that are restored from others: a row may contradict no relation, and yet
    have a value there that is far from those of all training rows.

    Args:
        preprocessor: of the model.
        kernels: the kernel density of its training rows.
        spreads: (2,), those of the log-density and of the kernel density among training rows.
    """

    def __init__(self, preprocessor: Preprocessor, kernels: KernelDensity, spreads: Tensor) -> None:
        if (
            spreads.shape != (2,)
            or spreads.dtype != torch.float64
            or not bool((spreads.isfinite() & (spreads > 0)).all())
        ):
            raise ValueError("the spreads of its anomaly score must be two float64 numbers above 0")
        self._measure = CommonMeasure(preprocessor)
        self._kernels, self._spreads = kernels, spreads

    @classmethod
    def fit(cls, preprocessor: Preprocessor, rows: RankedRows, log_density: LogDensity) -> Ranking:
        """From training rows of numbers, and a function that is their log-density."""
        kernels = KernelDensity.fit(*_columns(preprocessor), rows.all_features, rows.context, seeded(0))
        ranking = cls(preprocessor, kernels, torch.ones(2, dtype=torch.float64))
        rows = rows.select(torch.randperm(len(rows.x), generator=seeded(0, 1))[:_ROWS])
        terms = ranking.terms(rows, log_density(rows.x, rows.context)).nan_to_num()
        ends = torch.quantile(-terms, torch.tensor([0.5, _QUANTILE], dtype=torch.float64), dim=1)
        spreads = ends[1] - ends[0]
        return cls(preprocessor, kernels, torch.where(spreads > 0, spreads, 1.0))

    @classmethod
    def from_tensors(cls, preprocessor: Preprocessor, tensors: Mapping[str, Tensor]) -> Ranking:
        """That of :meth:`tensors`; a ValueError if they do not fit the columns."""
        own = {name: t for name, t in tensors.items() if name != "spreads"}
        kernels = KernelDensity(*_columns(preprocessor), own)
        return cls(preprocessor, kernels, tensors.get("spreads", torch.zeros(0)))

    def tensors(self) -> dict[str, Tensor]:
        return {**self._kernels.tensors(), "spreads": self._spreads}

    def terms(self, rows: RankedRows, log_density: Tensor) -> Tensor:
        """The comparable log-density and the kernel density (2, n) of rows."""
        comparable = log_density - self._measure.log_terms(rows.x)
        return torch.stack([comparable, self._kernels.log_prob(rows.all_features, rows.context)])

    def __call__(self, rows: RankedRows, log_density: Tensor) -> Tensor:
        """The sum of the terms (n,), each divided by its spread."""
        return (self.terms(rows, log_density) / self._spreads.unsqueeze(1)).sum(0)


def _columns(preprocessor: Preprocessor) -> tuple[list[Column], list[Column]]:
    """The columns of the kernel density, and of its context."""
    return [*preprocessor.features, *preprocessor.restored], preprocessor.context_columns
