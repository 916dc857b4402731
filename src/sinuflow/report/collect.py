"""Computing the content of a report from a model and a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Column, Preprocessor, Table, open_table
from ..data.columns import quoted_list
from ..data.sources import CONTENT_ROWS, content_hash, seeded
from ..data.tables import read_rows
from ..errors import DataError
from ..flows.mixed import MixedFlow
from ..models.continuation import hyperparameters
from ..models.table import TableModel
from .baselines import gaussian_log_density, kde_log_density, subsample
from .content import MISSING, Anomaly, ColumnView, Floats, Kind, ReportContent, Score
from .wording import training

#: Rows that figures and baselines are computed from, at most; rows that are inverted at a time; unlikely rows listed.
_ROWS, _BATCH, _ANOMALIES = 20_000, 4_096, 10
#: Points of a row's cells over which the density of a baseline is averaged.
_DRAWS = 4
#: Seconds of a mean Gregorian year.
_YEAR = 31_556_952.0
_UNSEEN = "(never seen)"


def collect(model: TableModel, data: Any) -> ReportContent:
    """The content of a report on a model and a table.

    Of the table that the model was trained on, only the test rows count, and the baselines are fitted to its training
    rows. Of another table, all rows count.
    """
    rows = _HeldOut(model, open_table(data))
    preprocessor = model.preprocessor
    like = next(model.flow.parameters())
    context = None if rows.context is None else preprocessor.context(rows.context).to(like)
    y, _ = preprocessor.draw(rows.x, seeded(0, 1))
    z, round_trip, residual = _round_trip(model, y.to(like), context)
    samples = _sample(model, context, min(_ROWS, max(1_000, len(y))))
    return ReportContent(
        title=f"Density of {model.facts['table']}",
        facts=_facts(model, rows),
        columns=[_view(c, rows.x[:, i], samples[:, i]) for i, c in enumerate(preprocessor.features)],
        history=model.history,
        best_step=int(model.facts["best_step"]),
        z=z.numpy(),
        model=Score("Sinuflow", model.score_numbers(rows.x, rows.context).numpy()),
        baselines=_baselines(model, rows),
        round_trip=round_trip,
        residual=residual,
        anomalies=_anomalies(model, rows),
        notes=_notes(model, rows),
        continuous=[preprocessor.features[i].name for i in preprocessor.axis_features],
    )


class _HeldOut:
    """The rows of the report as numbers, without those of density zero, and their indices in the table."""

    def __init__(self, model: TableModel, table: Table) -> None:
        count = table.count()
        #: Whether the table is the one that the model was trained on.
        self.same = count == model.facts["rows"] and model.facts["content"] in _fingerprints(model, table)
        random = np.random.default_rng([0, 2])
        test = subsample(model.split.test if self.same else np.arange(count), _ROWS, random)
        train = subsample(model.split.train, _ROWS, random) if self.same else np.empty(0, dtype=np.int64)
        held, trained, scores, anomaly_scores = [], [], [], []
        for rows in read_rows(table, model.preprocessor):
            indices = rows.first + np.arange(len(rows.x))
            fitted, chosen = np.isin(indices, train), np.isin(indices, test) & model.can_score(rows)
            trained.append(rows.x[torch.from_numpy(fitted)])
            picked = rows.select(chosen)
            held.append((torch.from_numpy(indices[chosen]), picked.x, picked.context))
            log_density = model.score_rows(picked)
            scores.append(torch.from_numpy(log_density))
            anomaly_scores.append(model.anomaly_score_rows(picked, log_density))
        if not sum(map(len, scores)):
            raise DataError(f"{table.name} has no rows with a density to report on")
        ids, x, context = zip(*held, strict=True)
        log_densities = torch.cat(scores)
        inside = log_densities.isfinite()
        #: The number of rows with density zero, which are left out.
        self.outside = int((~inside).sum())
        if not bool(inside.any()):
            raise DataError(f"no row of {table.name} is within the range of the model's columns")
        self.ids, self.x, self.log_density = torch.cat(ids)[inside], torch.cat(x)[inside], log_densities[inside].numpy()
        self.anomaly_scores = np.concatenate(anomaly_scores)[inside.numpy()]
        self.context = None if context[0] is None else torch.cat(context)[inside]
        self.train = torch.cat(trained)


def _fingerprints(model: TableModel, table: Table) -> set[str]:
    """The fingerprints of the table's first rows, and of its first rows without missing values."""
    everything: list[Tensor] = []
    complete: list[Tensor] = []
    for rows in read_rows(table, model.preprocessor):
        numbers = rows.x if rows.context is None else torch.cat([rows.x, rows.context], dim=1)
        everything.append(numbers[:CONTENT_ROWS])
        complete.append(numbers[torch.from_numpy(rows.complete)])
        if sum(map(len, complete)) >= CONTENT_ROWS:
            break
    return {content_hash(torch.cat(part)[:CONTENT_ROWS].numpy()) for part in (everything, complete) if part}


@torch.no_grad()
def _round_trip(model: TableModel, y: Tensor, context: Tensor | None) -> tuple[Tensor, float, float]:
    """The noise of the flow's inputs, and the largest error and residual of the inverse."""
    noise, errors = [], []
    for start in range(0, len(y), _BATCH):
        part, side = y[start : start + _BATCH], None if context is None else context[start : start + _BATCH]
        if isinstance(model.flow, MixedFlow):
            codes, part = part[:, : model.flow.discrete].long(), part[:, model.flow.discrete :]
            side = model.flow.inner_context(codes, side)
        z, _ = model.flow.bijection(part, side)
        inverse = model.flow.invert(z, side, on_failure="return")
        noise.append(z.cpu())
        errors.append(torch.stack([(inverse.x - part).abs().amax(), inverse.residual.amax()]))
    # amax propagates NaN.
    error, residual = torch.stack(errors).amax(0).nan_to_num(nan=torch.inf, posinf=torch.inf).tolist()
    return torch.cat(noise), error, residual


def _sample(model: TableModel, context: Tensor | None, count: int) -> Tensor:
    """Samples; those of a conditional model have contexts of random rows."""
    generator = torch.Generator(next(model.flow.parameters()).device).manual_seed(0)
    if context is not None:
        context = context[torch.randint(len(context), (count,), generator=seeded(0))]
    shape = (count,) if context is None else ()
    return model.preprocessor.inverse(model.flow(context).sample(shape, generator=generator).cpu())


def _view(column: Column, data: Tensor, samples: Tensor) -> ColumnView:
    """Held-out values and samples of a column, NaN where they are missing and infinite if they were never seen."""
    values = data.numpy(), samples.numpy()
    if column.kind == "category":
        names = np.array([*(str(value) for value in column.categories), MISSING, _UNSEEN])
        of_data, of_samples = (names[_codes(part, len(column.categories))] for part in values)
        return ColumnView(column.name, "category", of_data, of_samples, column.describe())
    name, first, unit = _axis(column)
    kind: Kind = "integer" if "int" in column.type and unit == 1 else "number"
    of_data, of_samples = ((first + part) / unit for part in values)
    step = column.step / unit if column.rounded else 0.0
    return ColumnView(name, kind, of_data, of_samples, column.describe(), step)


def _codes(values: Floats, categories: int) -> np.ndarray:
    missing = np.where(np.isnan(values), categories, values)
    return np.minimum(missing, categories + 1).astype(np.int64)


def _axis(column: Column) -> tuple[str, float, float]:
    """The column's name with a unit, and numbers a and b with which (a + x) / b is in that unit."""
    if column.format is None or column.format.axis is None:
        return column.name, 0.0, 1.0
    part, axis = column.format.parts[column.part], column.format.axis
    if part == "time" and axis.calendar:
        return f"{column.name} (year)", 1970 * _YEAR + axis.origin, _YEAR
    if part in ("time", "time of day"):
        return f"{column.name} (hours)", 0.0, 3600.0
    return column.name, 0.0, 1.0


def _baselines(model: TableModel, rows: _HeldOut) -> list[Score]:
    """Densities of the columns' normal scores, on whose axes repeated and missing values own cells."""
    if model.preprocessor.context_columns or len(rows.train) < 2:
        return []
    axes = Preprocessor(model.preprocessor.columns, levels="none")
    axes.initialize(rows.train, seeded(0, 2))
    train, _ = axes.draw(rows.train, seeded(0, 2))
    draws = [axes.draw(rows.x, seeded(0, 3, i)) for i in range(_DRAWS)]
    densities = {"Gaussian, full covariance": gaussian_log_density, "kernel density": kde_log_density}
    scores = []
    for name, log_p in densities.items():
        points = [torch.from_numpy(log_p(train.numpy(), y.numpy())) + offset for y, offset in draws]
        scores.append(Score(name, (torch.stack(points).logsumexp(0) - math.log(_DRAWS)).numpy()))
    return scores


def _anomalies(model: TableModel, rows: _HeldOut) -> list[Anomaly]:
    worst = np.argsort(-rows.anomaly_scores)[:_ANOMALIES]
    percentiles = model.percentile_of_score(rows.anomaly_scores[worst])
    return [
        Anomaly(int(i), int(rows.ids[i]) + 1, float(rows.log_density[i]), float(percentile))
        for i, percentile in zip(worst, percentiles, strict=True)
    ]


def _facts(model: TableModel, rows: _HeldOut) -> dict[str, str]:
    facts = model.facts
    flow = hyperparameters(model.flow)["flow"]
    shown = {
        "table": str(facts["table"]),
        "rows": f"{facts['used_rows']:,} used of {facts['rows']:,}",
        "rows in this report": f"{len(rows.ids):,}" + (" test rows" if rows.same else " rows of another table"),
        "columns": f"{len(model.preprocessor.features)} modelled",
        "flow": f"{flow['conditioning']} conditioning, {flow['blocks']} blocks, {flow['scales']} scales, "
        f"{flow['waves']} waves, hidden widths {'-'.join(map(str, flow['hidden']))}",
        "parameters": f"{facts['parameters']:,}",
        "training": training(facts),
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
            "The baselines are fitted to preprocessed training rows (each column as normal scores), which makes them "
            "stronger than on raw values."
        )
    if any(c.step or c.atoms for c in model.preprocessor.features):
        notes.append(
            "The densities of the baselines average over four random points of the cells that integers, categories, "
            "repeated and missing values own on the axes of the columns."
        )
    restored = [c.name for c in model.preprocessor.restored]
    if restored:
        notes.append(f"Columns that are restored from others are not compared: {quoted_list(restored)}.")
    notes += model.notices
    return notes
