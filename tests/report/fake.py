"""Synthetic content of a report."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from sinuflow.report.content import Anomaly, ColumnView, ReportContent, Score

HOSTILE = "<script>alert(1)</script>"


def column(
    name: str,
    kind: Literal["number", "integer", "category"],
    data: Any,
    samples: Any,
    map: str = "standardised",
    step: float = 0.0,
) -> ColumnView:
    return ColumnView(name, kind, np.asarray(data), np.asarray(samples), map, step)


def score(name: str, nll: float, standard_error: float = 0.0, rows: int = 2000) -> Score:
    """A density with this NLL and standard error; scores with other standard errors are correlated with it."""
    sign = np.where(np.arange(rows) % 2, 1.0, -1.0)
    return Score(name, -nll + standard_error * np.sqrt(rows - 1) * sign)


def content(rows: int = 2000, **changes: Any) -> ReportContent:
    """Five columns of all kinds, with plausible values."""
    rng = np.random.default_rng(7)

    def normals(n: int) -> np.ndarray:
        return rng.standard_normal((n, 4))

    d, s = normals(rows), normals(rows)
    names = np.array(["red", "green", "blue", "a rather long category name"], dtype=object)
    weights = [0.5, 0.25, 0.15, 0.1]
    heavy = d[:, 1] + 0.6 * d[:, 0]
    heavy[:3] = (400.0, -250.0, 90.0)
    columns = [
        column("temperature", "number", 20 + 5 * d[:, 0], 20 + 5.1 * s[:, 0]),
        column("price ($)", "number", heavy, s[:, 1] + 0.6 * s[:, 0]),
        column("income", "number", np.exp(8 + 1.6 * d[:, 2] + d[:, 0]), np.exp(8 + 1.6 * s[:, 2] + s[:, 0]), map="log"),
        column("age", "integer", rng.poisson(38, rows), rng.poisson(38.5, rows), "dequantised, step 1", 1.0),
        column("colour", "category", rng.choice(names, rows, p=weights), rng.choice(names, rows, p=weights), "one-hot"),
    ]
    history: list[dict[str, float | None]] = [
        {
            "step": step,
            "train_nll": 6 + 8 * np.exp(-step / 150) + 0.08 * rng.standard_normal(),
            "val_nll": 6.1 + 8 * np.exp(-step / 150) + 1e-4 * max(0, step - 1500) if step % 100 == 0 else None,
            "learning_rate": 1e-3 * min(1, step / 200) * (1 - step / 2100),
            "seconds": step / 50,
        }
        for step in range(10, 2001, 10)
    ]
    columns = changes.get("columns", columns)
    z = rng.standard_normal((len(columns[0].data), len(columns)))
    z[:, 0] *= 1.08
    z[:, -1] += 0.12 * z[:, 0]
    whole = ReportContent(
        title="Density of weather-and-prices.csv",
        facts={
            "Rows": "20,000 (16,000 training, 2,000 validation, 2,000 held out)",
            "Columns": "6 (5 modelled)",
            "Parameters": "182,430",
            "Training time": "4 min 12 s on 2 threads",
            "Flow": "full conditioning, 6 layers, 2 scales, 4 waves",
            "Seed": "0",
        },
        columns=columns,
        history=history,
        best_step=1500,
        z=z,
        model=score("Sinusoidal flow", 6.1034, 0.0312),
        baselines=[score("Gaussian", 7.8812, 0.0541), score("Kernel density", 6.7717, 0.0402)],
        round_trip=3.1e-6,
        residual=4.8e-7,
        anomalies=[
            Anomaly(position=k, row=100 * k + 1, log_density=-23.91 + 0.7 * k, percentile=100 - 0.01 * k)
            for k in range(min(10, len(z)))
        ],
        notes=["312 rows with missing values were dropped.", "The split is by row, at random, with the seed above."],
    )
    return dataclasses.replace(whole, **changes)


def wide(features: int = 60, rows: int = 2000) -> ReportContent:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((rows, features))
    mixed = z + 0.5 * np.roll(z, 1, axis=1)
    samples = rng.standard_normal((rows, features)) * 1.1
    columns = [
        column(f"measurement number {i} of the long experiment", "number", mixed[:, i], samples[:, i])
        for i in range(features)
    ]
    return content(columns=columns, z=z)
