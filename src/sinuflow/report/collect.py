"""Filling a report: a model and its table in, everything that the page shows out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Table, open_table
from ..data.columns import Column
from ..data.fingerprint import CONTENT_ROWS, content_hash
from ..data.reader import read_rows
from ..data.sources import seeded
from ..data.values import to_arrow
from ..errors import DataError
from ..models.table import TableModel
from .baselines import gaussian_log_density, kde_log_density
from .content import Anomaly, ColumnView, ReportContent, Score

#: Rows that figures and baselines are made from, at most.
_ROWS = 20_000
#: Rows that go there and back at a time.
_AT_ONCE = 4_096
_ANOMALIES = 10
_RECORDED = ("step", "train_nll", "val_nll", "learning_rate", "seconds")

Ids = np.ndarray[Any, np.dtype[np.int64]]


def collect(model: TableModel, data: Any, seed: int = 0) -> ReportContent:
    """What there is to say about a model on a table.

    If the table is the one that the model was trained on, only its test rows count, and the
    baselines are fitted to its training rows. Of another table all rows count.
    """
    table = open_table(data)
    rows = _Held(model, table, seed)
    preprocessor = model.preprocessor
    noise = seeded(seed, 1)
    x = preprocessor.dequantize(rows.test_x, noise)
    log_density = model.score_numbers(x, rows.test_given).numpy()
    exact = model.score_numbers(rows.test_x, rows.test_given).numpy()
    z, round_trip, residual, inverted = _there_and_back(model, x, rows.test_given)
    samples = _samples(model, rows.test_given, min(_ROWS, max(1_000, len(x))), seed)
    columns = [
        _view(column, rows.test_x[:, i].numpy(), samples[:, i].numpy())
        for i, column in enumerate(preprocessor.features)
    ]
    return ReportContent(
        title=f"Density of {model.facts['table']}",
        facts=_facts(model, rows),
        columns=columns,
        history=[{name: record.get(name) for name in _RECORDED} for record in model.history],
        best_step=int(model.facts["best_step"]),
        z=z.numpy(),
        z_names=[c.name for c in preprocessor.features],
        model=_score("Sinuflow", log_density),
        baselines=_baselines(model, rows, x, log_density, seed),
        features=len(preprocessor.features),
        round_trip=round_trip,
        residual=residual,
        inverted=inverted,
        anomalies=_anomalies(model, rows, exact),
        notes=_notes(model, rows),
    )


class _Held:
    """The rows that a report is about, as numbers, with their row numbers in the table."""

    def __init__(self, model: TableModel, table: Table, seed: int) -> None:
        rows = table.count()
        self.same = rows == model.facts["rows"] and _content(model, table) == model.facts["content"]
        random = np.random.default_rng([seed, 2])
        self._test = _some(model.split.test if self.same else np.arange(rows), random)
        self._train = _some(model.split.train, random) if self.same else np.empty(0, dtype=np.int64)
        parts: dict[str, list[Any]] = {"x": [], "given": [], "ids": [], "train": []}
        for piece in read_rows(table, model.preprocessor):
            ids = piece.first + np.arange(len(piece.complete))
            chosen = piece.complete & np.isin(ids, self._test)
            parts["x"].append(piece.x[torch.from_numpy(chosen)])
            parts["ids"].append(ids[chosen])
            if piece.context is not None:
                parts["given"].append(piece.context[torch.from_numpy(chosen)])
            parts["train"].append(piece.x[torch.from_numpy(piece.complete & np.isin(ids, self._train))])
        self.ids: Ids = np.concatenate(parts["ids"]) if parts["ids"] else np.empty(0, dtype=np.int64)
        if not len(self.ids):
            raise DataError(f"{table.name} has no complete rows to report on")
        x = torch.cat(parts["x"])
        given = torch.cat(parts["given"]) if parts["given"] else None
        inside = model.score_numbers(x, given).isfinite()
        self.outside = int((~inside).sum())
        if not bool(inside.any()):
            raise DataError(f"no row of {table.name} is within the range of the model's columns")
        self.ids = self.ids[inside.numpy()]
        self.test_x, self.test_given = x[inside], None if given is None else given[inside]
        self.train_x = torch.cat(parts["train"]) if self.same else None


def _content(model: TableModel, table: Table) -> str:
    """The fingerprint of the table's first complete rows."""
    found: list[Tensor] = []
    for rows in read_rows(table, model.preprocessor):
        both = rows.x if rows.context is None else torch.cat([rows.x, rows.context], dim=1)
        found.append(both[torch.from_numpy(rows.complete)])
        if sum(map(len, found)) >= CONTENT_ROWS:
            break
    return content_hash(torch.cat(found)[:CONTENT_ROWS].numpy()) if found else ""


def _some(ids: Ids, random: np.random.Generator) -> Ids:
    return ids if len(ids) <= _ROWS else np.sort(random.choice(ids, _ROWS, replace=False))


def _there_and_back(model: TableModel, x: Tensor, given: Tensor | None) -> tuple[Tensor, float, float, int]:
    """The rows as noise, and how far from where they were they come back."""
    home = next(model.flow.parameters())
    y = model.preprocessor.forward(x)[0].to(home)
    context = None if given is None else model.preprocessor.context(given).to(home)
    noise, error, residual = [], 0.0, 0.0
    with torch.no_grad():
        for start in range(0, len(y), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            side = None if context is None else context[rows]
            z, _ = model.flow.bijection(y[rows], side)
            inverse = model.flow.invert(z, side, on_failure="return")
            error = max(error, _largest((inverse.x - y[rows]).abs()))
            residual = max(residual, _largest(inverse.residual))
            noise.append(z.cpu())
    return torch.cat(noise), error, residual, len(y)


def _largest(errors: Tensor) -> float:
    """The maximum, with NaN as infinity: Python's max would pass over it."""
    return float(errors.nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def _samples(model: TableModel, given: Tensor | None, count: int, seed: int) -> Tensor:
    """Samples, for a conditional model given the contexts of the rows that they stand beside."""
    home = next(model.flow.parameters())
    generator = torch.Generator(home.device).manual_seed(seed)
    context = None
    if given is not None:
        chosen = torch.randint(len(given), (count,), generator=seeded(seed))
        context = model.preprocessor.context(given[chosen]).to(home)
    shape = (count,) if context is None else ()
    return model.preprocessor.inverse(model.flow(context).sample(shape, generator=generator).cpu())


def _view(column: Column, data: np.ndarray, samples: np.ndarray) -> ColumnView:
    if column.kind == "category":
        values, drawn = (np.array([str(column.categories[int(i)]) for i in part]) for part in (data, samples))
        return ColumnView(column.name, "category", values, drawn, column.describe())
    kind = "integer" if "int" in column.type else "number"
    return ColumnView(column.name, kind, data, samples, column.describe())


def _score(name: str, log_density: np.ndarray, model: np.ndarray | None = None) -> Score:
    lead = None if model is None else _standard_error(model - log_density)
    worst = float(log_density.min())
    return Score(name, float(-log_density.mean()), _standard_error(log_density), worst, lead)


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _baselines(model: TableModel, rows: _Held, x: Tensor, log_density: np.ndarray, seed: int) -> list[Score]:
    if rows.train_x is None or model.preprocessor.context_columns or len(rows.train_x) < 2:
        return []
    train, _ = model.preprocessor.prepare(model.preprocessor.dequantize(rows.train_x, seeded(seed, 2)))
    test, ladj = model.preprocessor.prepare(x)
    return [
        _score(name, density(train.numpy(), test.numpy()) + ladj.numpy(), log_density)
        for name, density in (("Gaussian, full covariance", gaussian_log_density), ("kernel density", kde_log_density))
    ]


def _anomalies(model: TableModel, rows: _Held, log_density: np.ndarray) -> list[Anomaly]:
    worst = np.argsort(log_density)[:_ANOMALIES]
    percentiles = model.anomaly_percentile(log_density[worst])
    found = []
    for i, percentile in zip(worst, percentiles, strict=True):
        values = {
            c.name: _text(to_arrow(c, rows.test_x[i : i + 1, j].numpy())[0].as_py())
            for j, c in enumerate(model.preprocessor.features)
        }
        found.append(Anomaly(int(rows.ids[i]) + 1, float(log_density[i]), float(percentile), values))
    return found


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(model: TableModel, rows: _Held) -> dict[str, str]:
    facts, flow = model.facts, model.flow.config
    constant = [c.name for c in model.preprocessor.columns if c.kind == "constant"]
    shown = {
        "table": str(facts["table"]),
        "rows": f"{facts['used_rows']:,} used of {facts['rows']:,}",
        "rows in this report": f"{len(rows.ids):,}" + (" test rows" if rows.same else " rows of another table"),
        "columns": f"{len(model.preprocessor.features)} modelled",
        "flow": f"{flow['conditioning']}, {flow['blocks']} blocks, {flow['scales']} scales, {flow['waves']} waves, "
        f"hidden {'-'.join(map(str, flow['hidden']))}",
        "parameters": f"{facts['parameters']:,}",
        "training": f"{facts['steps']:,} steps in {facts['seconds']:.0f} s, best at step {facts['best_step']:,}",
        "seed": str(facts["seed"]),
        "torch": str(facts["torch"]),
    }
    if constant:
        shown["constant columns"] = ", ".join(constant)
    if model.preprocessor.context_columns:
        shown["given"] = ", ".join(c.name for c in model.preprocessor.context_columns)
    return shown


def _notes(model: TableModel, rows: _Held) -> list[str]:
    notes = []
    if rows.outside:
        notes.append(
            f"{rows.outside:,} rows are outside of the range of a column's map, have no density, and are left out."
        )
    if not rows.same:
        notes.append(
            "The rows are not from the table that the model was trained on, as far as its first rows tell. So all of "
            "them count as held out, and there are no baselines."
        )
    elif model.preprocessor.context_columns:
        notes.append("The model is conditional; the baselines know no context, and are left out.")
    else:
        notes.append(
            "The baselines are fitted to the training rows after the columns' own maps (logarithms, dequantisation, "
            "standardisation), which makes them stronger than on the raw values."
        )
    if any(c.step for c in model.preprocessor.features):
        notes.append(
            "Integers, categories and repeated values are spread evenly over their cells before they are scored "
            "here, for all methods alike. Scores of single rows are taken at the middles of the cells."
        )
    return notes
