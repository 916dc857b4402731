"""The content of a report as plain data, which :mod:`.collect` computes and :mod:`.page` renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .wording import bound

Floats = NDArray[np.floating[Any]]
Kind = Literal["number", "integer", "category"]

#: What stands for a missing value: the name of a category, or a cell of a table.
MISSING = "missing"

#: Negligible and tolerable round-trip errors, in standard deviations: the standard errors of means of a million and of
#: ten thousand samples.
NEGLIGIBLE, TOLERABLE = 1e-3, 1e-2


@dataclass(frozen=True, eq=False)
class ColumnView:
    """One column: held-out values beside the model's samples, in the units of the table."""

    name: str
    kind: Kind
    data: NDArray[Any]  # floats, NaN where they are missing, or strings for categories
    samples: NDArray[Any]
    map: str  # the preprocessing in a few words, such as "standardised"
    step: float = 0.0  # of the grid of the values; 0: they are on none


@dataclass(frozen=True, eq=False)
class Score:
    """A density's log p(x) at the held-out rows, in nats, and its mean, the negative log-likelihood (NLL)."""

    name: str
    log_density: Floats

    @property
    def nll(self) -> float:
        return float(-self.log_density.mean())

    @property
    def standard_error(self) -> float:
        return _standard_error(self.log_density)

    def lead_of(self, model: Score) -> tuple[float, float]:
        """NLL(self) − NLL(model), and its standard error, by the differences of the rows."""
        return self.nll - model.nll, _standard_error(model.log_density - self.log_density)


def _standard_error(values: Floats) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


class Anomaly(NamedTuple):
    """One unlikely row."""

    position: int  # among the rows of the report
    row: int  # its number in the table
    log_density: float
    percentile: float  # the percentage of calibration rows with a higher density


class Accuracy(NamedTuple):
    """A judgement of the inverse: a label, whether the error is negligible, and what it means for samples."""

    label: str
    good: bool
    meaning: str


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything on the page."""

    title: str
    facts: dict[str, str]
    columns: list[ColumnView]  # those that are modelled, with the same rows in the same order
    history: list[dict[str, float | None]]  # of the training; values may be missing, None or NaN
    best_step: int
    z: Floats  # the noise of the rows, one column for each of ``noise_names``
    model: Score
    baselines: list[Score]
    round_trip: float  # the largest |x − T⁻¹(T(x))| of prepared columns (standardised, uncorrelated)
    residual: float  # the largest |z − T(T⁻¹(z))|
    anomalies: list[Anomaly]  # the most unlikely first
    notes: list[str]
    continuous: list[str] | None = None  # the columns with a continuous part, if not all have one

    @property
    def noise_names(self) -> list[str]:
        """The columns to which the columns of ``z`` belong."""
        return [column.name for column in self.columns] if self.continuous is None else self.continuous

    def __post_init__(self) -> None:
        lengths = {(len(column.data), len(column.samples)) for column in self.columns}
        if len(lengths) != 1 or self.z.shape != (len(self.columns[0].data), len(self.noise_names)):
            raise ArgumentError(
                "a report needs columns of equal length, and the noise of each cell: their values and samples have "
                f"lengths {sorted(lengths)}, and z has shape {self.z.shape}"
            )

    @property
    def accuracy(self) -> Accuracy:
        """A judgement of the larger one of the round-trip error and the residual; NaN counts as infinite."""
        error = float(np.max([self.round_trip, self.residual]))  # NaN if one of them is
        if error <= NEGLIGIBLE:
            return Accuracy("Verified.", True, "samples follow the density that the model reports")
        if error <= TOLERABLE:
            samples = int(float(f"{error**-2:.0e}"))  # whose mean has a standard error of the same size
            return Accuracy(
                "Limited accuracy.",
                False,
                "the inverse amplifies rounding errors: means and quantiles of samples can be off by "
                f"{bound(error)} standard deviations, which is noticeable with more than {samples:,} "
                "samples. sinuflow sample --certify certifies every draw, or reports that it cannot",
            )
        return Accuracy(
            "Not verified.",
            False,
            "the inverse amplifies rounding errors too much: do not trust this model's samples, except for those drawn "
            "by sinuflow sample --certify",
        )
