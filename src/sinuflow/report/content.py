"""What a report shows, as plain data: whoever fits the model fills it in, :mod:`.page` draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class ColumnView:
    """One column of the table: held-out values beside the model's samples, in the user's units.

    Args:
        name: the column's name.
        kind: "number", "integer", "category" or "constant".
        data: the held-out rows' values; floats, or strings for categories.
        samples: the model's samples, likewise.
        map: how the column was prepared, in a short phrase ("standardised", "dequantised, step 0.1").
    """

    name: str
    kind: str
    data: NDArray[Any]
    samples: NDArray[Any]
    map: str


@dataclass(frozen=True)
class Score:
    """A density's mean negative log-likelihood on the held-out rows, in nats per row.

    Args:
        name: the density's name.
        nll: the mean over rows of −log p(x).
        standard_error: of that mean.
        worst: the lowest log density of any row; None where it is unknown.
        lead_error: the standard error of the model's lead over this density, row by row on the same
            rows; None where it is unknown, and for the model itself.
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
        row: its number in the user's table.
        log_density: log p(x), in nats.
        percentile: the share of training rows, in percent, that are likelier than this one.
        values: the row's values by column name, ready to print.
    """

    row: int
    log_density: float
    percentile: float
    values: dict[str, str]


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything on the page.

    Args:
        title: the page's title.
        facts: name and value of what is worth knowing (rows, columns, parameters, training time).
        columns: the columns, in the table's order; all with the same rows, in the same order.
        history: one entry per report of training: step, train_nll, val_nll, learning_rate, seconds;
            a value may be missing, None or NaN.
        best_step: the step whose weights were kept.
        z: the held-out rows as noise, one column per modelled feature.
        z_names: the names of z's columns.
        model: the model's score on the held-out rows.
        baselines: other densities' scores on the same rows.
        features: the number of modelled columns.
        round_trip: the largest |x − T(T⁻¹(x))| over ``inverted`` rows, in units of the prepared columns (standardised,
            uncorrelated); infinite where the inverse failed.
        residual: the largest |z − T⁻¹(T(z))| over the same rows' noise z.
        inverted: how many held-out rows went there and back.
        anomalies: the most unlikely rows, worst first.
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
        for what in ("data", "samples"):
            lengths = {len(getattr(column, what)) for column in self.columns}
            if len(lengths) > 1:
                raise ArgumentError(f"the columns' {what} must have the same rows, not {sorted(lengths)} of them")
