"""Computing the content of a report from a model and a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Table, open_table
from ..data.columns import Column
from ..data.sources import CONTENT_ROWS, content_hash, seeded
from ..data.tables import read_rows
from ..data.values import to_arrow
from ..errors import DataError
from ..models.table import TableModel
from .baselines import gaussian_log_density, kde_log_density
from .content import Anomaly, ColumnView, ReportContent, Score

#: Rows that figures and baselines are computed from, at most; rows that are inverted at a time; unlikely rows listed.
_ROWS, _BATCH, _ANOMALIES = 20_000, 4_096, 10
_RECORDED = ("step", "train_nll", "val_nll", "learning_rate", "seconds")

Ids = np.ndarray[Any, np.dtype[np.int64]]


def collect(model: TableModel, data: Any, seed: int = 0) -> ReportContent:
    """The content of a report on a model and a table.

    Of the table that the model was trained on, only the test rows count, and the baselines are fitted to its training
    rows. Of another table, all rows count.
    """
    rows = _HeldOut(model, open_table(data), seed)
    preprocessor, features = model.preprocessor, model.preprocessor.features
    x = preprocessor.dequantize(rows.x, seeded(seed, 1))
    log_density = model.score_numbers(x, rows.context).numpy()
    z, round_trip, residual = _round_trip(model, x, rows.context)
    samples = _sample(model, rows.context, min(_ROWS, max(1_000, len(x))), seed)
    return ReportContent(
        title=f"Density of {model.facts['table']}",
        facts=_facts(model, rows),
        columns=[_view(c, rows.x[:, i].numpy(), samples[:, i].numpy()) for i, c in enumerate(features)],
        history=[{name: record.get(name) for name in _RECORDED} for record in model.history],
        best_step=int(model.facts["best_step"]),
        z=z.numpy(),
        z_names=[c.name for c in features],
        model=_score("Sinuflow", log_density),
        baselines=_baselines(model, rows, x, log_density, seed),
        features=len(features),
        round_trip=round_trip,
        residual=residual,
        inverted=len(x),
        anomalies=_anomalies(model, rows),
        notes=_notes(model, rows),
    )


class _HeldOut:
    """The rows of the report as numbers, and their indices in the table.

    Attributes:
        same: whether the table is the one that the model was trained on.
        ids: the indices of the rows.
        x: the rows.
        context: their context columns, or None.
        train: training rows, or None for another table.
        outside: the number of rows with density zero, which are left out.
    """

    def __init__(self, model: TableModel, table: Table, seed: int) -> None:
        count = table.count()
        self.same = count == model.facts["rows"] and _fingerprint(model, table) == model.facts["content"]
        random = np.random.default_rng([seed, 2])
        test = _subsample(model.split.test if self.same else np.arange(count), random)
        train = _subsample(model.split.train, random) if self.same else np.empty(0, dtype=np.int64)
        x, context, trained, ids = [], [], [], []
        for piece in read_rows(table, model.preprocessor):
            indices = piece.first + np.arange(len(piece.complete))
            chosen = piece.complete & np.isin(indices, test)
            x.append(piece.x[torch.from_numpy(chosen)])
            ids.append(indices[chosen])
            if piece.context is not None:
                context.append(piece.context[torch.from_numpy(chosen)])
            trained.append(piece.x[torch.from_numpy(piece.complete & np.isin(indices, train))])
        if not sum(map(len, ids)):
            raise DataError(f"{table.name} has no complete rows to report on")
        self.x, self.ids = torch.cat(x), np.concatenate(ids)
        self.context = torch.cat(context) if context else None
        self.train = torch.cat(trained) if self.same else None
        self.log_density = model.score_numbers(self.x, self.context)
        inside = self.log_density.isfinite()
        self.outside = int((~inside).sum())
        if not bool(inside.any()):
            raise DataError(f"no row of {table.name} is within the range of the model's columns")
        self.x, self.ids, self.log_density = self.x[inside], self.ids[inside.numpy()], self.log_density[inside]
        self.context = None if self.context is None else self.context[inside]


def _fingerprint(model: TableModel, table: Table) -> str:
    """The fingerprint of the table's first complete rows."""
    parts: list[Tensor] = []
    for rows in read_rows(table, model.preprocessor):
        both = rows.x if rows.context is None else torch.cat([rows.x, rows.context], dim=1)
        parts.append(both[torch.from_numpy(rows.complete)])
        if sum(map(len, parts)) >= CONTENT_ROWS:
            break
    return content_hash(torch.cat(parts)[:CONTENT_ROWS].numpy()) if parts else ""


def _subsample(ids: Ids, random: np.random.Generator) -> Ids:
    return ids if len(ids) <= _ROWS else np.sort(random.choice(ids, _ROWS, replace=False))


@torch.no_grad()
def _round_trip(model: TableModel, x: Tensor, columns: Tensor | None) -> tuple[Tensor, float, float]:
    """The noise of rows, the largest error of the rows after the inverse, and its largest residual."""
    parameter = next(model.flow.parameters())
    y = model.preprocessor.forward(x)[0].to(parameter)
    context = None if columns is None else model.preprocessor.context(columns).to(parameter)
    noise, errors, residuals = [], [], []
    for start in range(0, len(y), _BATCH):
        rows = slice(start, start + _BATCH)
        side = None if context is None else context[rows]
        z, _ = model.flow.bijection(y[rows], side)
        inverse = model.flow.invert(z, side, on_failure="return")
        errors.append((inverse.x - y[rows]).abs().amax())
        residuals.append(inverse.residual.amax())
        noise.append(z.cpu())
    # amax propagates NaN.
    error, residual = (
        float(torch.stack(each).amax().nan_to_num(nan=torch.inf, posinf=torch.inf)) for each in (errors, residuals)
    )
    return torch.cat(noise), error, residual


def _sample(model: TableModel, columns: Tensor | None, count: int, seed: int) -> Tensor:
    """Samples; those of a conditional model have contexts of random rows."""
    parameter = next(model.flow.parameters())
    generator = torch.Generator(parameter.device).manual_seed(seed)
    context = None
    if columns is not None:
        chosen = torch.randint(len(columns), (count,), generator=seeded(seed))
        context = model.preprocessor.context(columns[chosen]).to(parameter)
    shape = (count,) if context is None else ()
    return model.preprocessor.inverse(model.flow(context).sample(shape, generator=generator).cpu())


def _view(column: Column, data: np.ndarray, samples: np.ndarray) -> ColumnView:
    kind = "category" if column.kind == "category" else "integer" if "int" in column.type else "number"
    if kind == "category":
        data, samples = (np.array([str(column.categories[int(i)]) for i in codes]) for codes in (data, samples))
    return ColumnView(column.name, kind, data, samples, column.describe())


def _score(name: str, log_density: np.ndarray, model: np.ndarray | None = None) -> Score:
    lead = None if model is None else _standard_error(model - log_density)
    return Score(name, float(-log_density.mean()), _standard_error(log_density), float(log_density.min()), lead)


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _baselines(model: TableModel, rows: _HeldOut, x: Tensor, log_density: np.ndarray, seed: int) -> list[Score]:
    if rows.train is None or model.preprocessor.context_columns or len(rows.train) < 2:
        return []
    train, _ = model.preprocessor.prepare(model.preprocessor.dequantize(rows.train, seeded(seed, 2)))
    test, ladj = model.preprocessor.prepare(x)
    return [
        _score(name, density(train.numpy(), test.numpy()) + ladj.numpy(), log_density)
        for name, density in (("Gaussian, full covariance", gaussian_log_density), ("kernel density", kde_log_density))
    ]


def _anomalies(model: TableModel, rows: _HeldOut) -> list[Anomaly]:
    log_density = rows.log_density.numpy()
    worst = np.argsort(log_density)[:_ANOMALIES]
    columns = [
        (c.name, to_arrow(c, rows.x[torch.from_numpy(worst), j].numpy()).to_pylist())
        for j, c in enumerate(model.preprocessor.features)
    ]
    percentiles = model.anomaly_percentile(log_density[worst])
    return [
        Anomaly(
            int(rows.ids[i]) + 1,
            float(log_density[i]),
            float(percentile),
            {name: f"{v[k]:.6g}" if isinstance(v[k], float) else str(v[k]) for name, v in columns},
        )
        for k, (i, percentile) in enumerate(zip(worst, percentiles, strict=True))
    ]


def _facts(model: TableModel, rows: _HeldOut) -> dict[str, str]:
    facts, flow = model.facts, model.flow.config
    shown = {
        "table": str(facts["table"]),
        "rows": f"{facts['used_rows']:,} used of {facts['rows']:,}",
        "rows in this report": f"{len(rows.ids):,}" + (" test rows" if rows.same else " rows of another table"),
        "columns": f"{len(model.preprocessor.features)} modelled",
        "flow": f"{flow['conditioning']} conditioning, {flow['blocks']} blocks, {flow['scales']} scales, "
        f"{flow['waves']} waves, hidden widths {'-'.join(map(str, flow['hidden']))}",
        "parameters": f"{facts['parameters']:,}",
        "training": f"{facts['steps']:,} steps in {facts['seconds']:.0f} s, best at step {facts['best_step']:,}",
        "seed": str(facts["seed"]),
        "torch": str(facts["torch"]),
        "constant columns": ", ".join(c.name for c in model.preprocessor.columns if c.kind == "constant"),
        "context columns": ", ".join(c.name for c in model.preprocessor.context_columns),
    }
    return {name: value for name, value in shown.items() if value}


def _notes(model: TableModel, rows: _HeldOut) -> list[str]:
    notes = []
    if rows.outside:
        notes.append(f"{rows.outside:,} rows are outside of a column's range, have density zero, and are left out.")
    if not rows.same:
        notes.append(
            "The rows are not from the table that the model was trained on, judging by its first rows. All of them "
            "count as held out, and there are no baselines."
        )
    elif model.preprocessor.context_columns:
        notes.append("The model is conditional. The baselines are not, and are left out.")
    else:
        notes.append(
            "The baselines are fitted to the preprocessed training rows (logarithms, dequantisation, standardisation), "
            "which makes them stronger than on raw values."
        )
    if any(c.step for c in model.preprocessor.features):
        notes.append(
            "Integers, categories and repeated values are dequantised uniformly before they are scored here, for all "
            "densities alike. Scores of single rows are computed at the centres of the cells."
        )
    return notes
