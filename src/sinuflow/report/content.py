"""The content of a report as plain data, which :mod:`.collect` computes and :mod:`.page` renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .wording import at_most, small

Floats = NDArray[np.floating[Any]]

#: Negligible and tolerable round-trip errors, in standard deviations: the standard errors of means of a million and of
#: ten thousand samples.
NEGLIGIBLE, TOLERABLE = 1e-3, 1e-2


@dataclass(frozen=True, eq=False)
class ColumnView:
    """One column: held-out values beside the model's samples, in the units of the table.

    Args:
        name: of the column.
        kind: "number", "integer", "category" or "constant".
        data: the values of the held-out rows; floats, or strings for categories.
        samples: the model's samples.
        map: a short description of the preprocessing ("standardised", "dequantised, step 0.1").
    """

    name: str
    kind: str
    data: NDArray[Any]
    samples: NDArray[Any]
    map: str

    @property
    def discrete(self) -> bool:
        """Whether values have no order."""
        return self.kind in ("category", "constant")


@dataclass(frozen=True)
class Score:
    """The mean negative log-likelihood of the held-out rows under a density, in nats per row.

    Args:
        name: of the density.
        nll: the mean of −log p(x).
        standard_error: of that mean.
        worst: the lowest log-density of any row, if known.
        lead_error: the standard error of the mean difference from the model, row by row; None for the model itself,
            and where it is not known.
    """

    name: str
    nll: float
    standard_error: float
    worst: float | None
    lead_error: float | None = None


@dataclass(frozen=True)
class Anomaly:
    """One unlikely row.

    Args:
        row: its number in the table.
        log_density: log p(x), in nats.
        percentile: the percentage of training rows with a higher density.
        values: the row's values by column name, as text.
    """

    row: int
    log_density: float
    percentile: float
    values: dict[str, str]


@dataclass(frozen=True)
class Accuracy:
    """A judgement of the inverse: a label, whether the error is negligible, and what it means for samples."""

    label: str
    good: bool
    meaning: str


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything on the page.

    Args:
        title: of the page.
        facts: names and values of further information (rows, parameters, training time).
        columns: in the table's order, with the same rows in the same order.
        history: records of the training: step, train_nll, val_nll, learning_rate, seconds; values may be missing, None
            or NaN.
        best_step: the step with the selected weights.
        z: the noise of the held-out rows, one column per modelled feature.
        z_names: the names of the columns of z.
        model: the model's score on the held-out rows.
        baselines: the scores of other densities on the same rows.
        features: the number of modelled columns.
        round_trip: the largest |x − T⁻¹(T(x))| over ``inverted`` rows, in units of the prepared columns (standardised,
            uncorrelated); infinite where the inverse failed.
        residual: the largest |z − T(T⁻¹(z))| over the noise of the same rows.
        inverted: the number of held-out rows that were mapped to noise and back.
        anomalies: the most unlikely rows, the most unlikely first.
        notes: sentences for the end of the page.
    """

    title: str
    facts: dict[str, str]
    columns: list[ColumnView]
    history: list[dict[str, float | None]]
    best_step: int
    z: Floats
    z_names: list[str]
    model: Score
    baselines: list[Score]
    features: int
    round_trip: float
    residual: float
    inverted: int
    anomalies: list[Anomaly]
    notes: list[str]

    def __post_init__(self) -> None:
        if self.z.ndim != 2 or self.z.shape[1] != len(self.z_names):
            raise ArgumentError(f"z has shape {self.z.shape}, and there are {len(self.z_names)} names of its columns")
        for part in ("data", "samples"):
            lengths = {len(getattr(column, part)) for column in self.columns}
            if len(lengths) > 1:
                raise ArgumentError(f"the columns' {part} must have the same rows, not {sorted(lengths)} of them")

    @property
    def accuracy(self) -> Accuracy:
        """A judgement of the larger one of the round-trip error and the residual; NaN counts as infinite."""
        if self.inverted == 0:
            return Accuracy("Not verified.", False, "nothing is certified here")
        errors = (self.round_trip, self.residual)
        if all(error <= NEGLIGIBLE for error in errors):
            return Accuracy("Verified.", True, "samples follow the density that the model reports")
        if all(error <= TOLERABLE for error in errors):
            error = max(errors)
            samples = int(float(f"{error**-2:.0e}"))  # whose mean has a standard error of the same size
            return Accuracy(
                "Limited accuracy.",
                False,
                "the inverse amplifies rounding errors: means and quantiles of samples can be off by "
                f"{small(at_most(error, 2))} standard deviations, which is noticeable with more than {samples:,} "
                "samples. sinuflow sample --certify certifies every draw, or reports that it cannot",
            )
        return Accuracy(
            "Not verified.",
            False,
            "the inverse amplifies rounding errors too much: do not trust this model's samples, except for those drawn "
            "by sinuflow sample --certify",
        )
