"""Synthetic content of a report."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sinuflow.report import Anomaly, ColumnView, ReportContent, Score

HOSTILE = "<script>alert(1)</script>"


def column(name: str, kind: str, data: Any, samples: Any, map: str = "standardised") -> ColumnView:
    return ColumnView(name, kind, np.asarray(data), np.asarray(samples), map)


def content(rows: int = 2000, **changes: Any) -> ReportContent:
    """Six columns of all kinds, with plausible values."""
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
        column("age", "integer", rng.poisson(38, rows), rng.poisson(38.5, rows), map="dequantised, step 1"),
        column("colour", "category", rng.choice(names, rows, p=weights), rng.choice(names, rows, p=weights), "one-hot"),
        column("version", "constant", np.full(rows, "3"), np.full(rows, "3"), map="left out"),
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
    z = normals(rows)
    z[:, 3] *= 1.08
    z[:, 2] += 0.12 * z[:, 0]
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
        z_names=["temperature", "price ($)", "income", "age"],
        model=Score("Sinusoidal flow", 6.1034, 0.0312, -23.91),
        baselines=[Score("Gaussian", 7.8812, 0.0541, -812.4), Score("Kernel density", 6.7719, 0.0402, -61.0)],
        features=5,
        round_trip=3.1e-6,
        residual=4.8e-7,
        inverted=2000,
        anomalies=[
            Anomaly(
                row=int(i),
                log_density=-23.91 + 0.7 * k,
                percentile=100 - 0.01 * k,
                values={c.name: str(c.data[i])[:8] for c in columns},
            )
            for k, i in enumerate(rng.choice(rows, 10, replace=False))
        ],
        notes=["312 rows with missing values were dropped.", "The split is by row, at random, with the seed above."],
    )
    return dataclasses.replace(whole, **changes)


def wide(features: int = 60, rows: int = 2000) -> ReportContent:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((rows, features))
    mixed = z + 0.5 * np.roll(z, 1, axis=1)
    samples = rng.standard_normal((rows, features)) * 1.1
    names = [f"measurement number {i} of the long experiment" for i in range(features)]
    columns = [column(name, "number", mixed[:, i], samples[:, i]) for i, name in enumerate(names)]
    values = {name: f"{mixed[0, i]:.6g}" for i, name in enumerate(names)}
    anomalies = [Anomaly(i, -80.0 + i, 99.0, values) for i in range(20)]
    return content(columns=columns, z=z, z_names=names, features=features, anomalies=anomalies)
