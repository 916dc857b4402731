"""Computing the content of a report from a model and a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Column, Table, open_table
from ..data.sources import CONTENT_ROWS, content_hash, seeded
from ..data.tables import read_rows
from ..errors import DataError
from ..models.table import TableModel
from .baselines import gaussian_log_density, kde_log_density, subsample
from .content import Anomaly, ColumnView, Kind, ReportContent, Score

#: Rows that figures and baselines are computed from, at most; rows that are inverted at a time; unlikely rows listed.
_ROWS, _BATCH, _ANOMALIES = 20_000, 4_096, 10


def collect(model: TableModel, data: Any) -> ReportContent:
    """The content of a report on a model and a table.

    Of the table that the model was trained on, only the test rows count, and the baselines are fitted to its training
    rows. Of another table, all rows count.
    """
    rows = _HeldOut(model, open_table(data))
    preprocessor = model.preprocessor
    x = preprocessor.dequantize(rows.x, seeded(0, 1))
    like = next(model.flow.parameters())
    context = None if rows.context is None else preprocessor.context(rows.context).to(like)
    z, round_trip, residual = _round_trip(model, preprocessor(x)[0].to(like), context)
    samples = _sample(model, context, min(_ROWS, max(1_000, len(x))))
    return ReportContent(
        title=f"Density of {model.facts['table']}",
        facts=_facts(model, rows),
        columns=[_view(c, rows.x[:, i], samples[:, i]) for i, c in enumerate(preprocessor.features)],
        history=model.history,
        best_step=int(model.facts["best_step"]),
        z=z.numpy(),
        model=Score("Sinuflow", model.score_numbers(x, rows.context).numpy()),
        baselines=_baselines(model, rows, x),
        round_trip=round_trip,
        residual=residual,
        anomalies=_anomalies(model, rows),
        notes=_notes(model, rows),
    )


class _HeldOut:
    """The rows of the report as numbers, without those of density zero, and their indices in the table."""

    def __init__(self, model: TableModel, table: Table) -> None:
        count = table.count()
        #: Whether the table is the one that the model was trained on.
        self.same = count == model.facts["rows"] and _fingerprint(model, table) == model.facts["content"]
        random = np.random.default_rng([0, 2])
        test = subsample(model.split.test if self.same else np.arange(count), _ROWS, random)
        train = subsample(model.split.train, _ROWS, random) if self.same else np.empty(0, dtype=np.int64)
        kept, ids, trained = [], [], []
        width = len(model.preprocessor.features)
        for indices, numbers in _complete(model, table):
            chosen, fitted = (torch.from_numpy(np.isin(indices, part)) for part in (test, train))
            kept.append(numbers[chosen])
            ids.append(indices[chosen])
            trained.append(numbers[fitted, :width])
        if not sum(map(len, ids)):
            raise DataError(f"{table.name} has no complete rows to report on")
        numbers = torch.cat(kept)
        context = numbers[:, width:] if model.preprocessor.context_columns else None
        log_density = model.score_numbers(numbers[:, :width], context)
        inside = log_density.isfinite()
        #: The number of rows with density zero, which are left out.
        self.outside = int((~inside).sum())
        if not bool(inside.any()):
            raise DataError(f"no row of {table.name} is within the range of the model's columns")
        self.x, self.context = numbers[inside, :width], None if context is None else context[inside]
        self.ids, self.log_density = torch.cat(ids)[inside], log_density[inside].numpy()
        self.train = torch.cat(trained)


def _fingerprint(model: TableModel, table: Table) -> str:
    """The fingerprint of the table's first complete rows."""
    parts: list[Tensor] = []
    for _, numbers in _complete(model, table):
        parts.append(numbers)
        if sum(map(len, parts)) >= CONTENT_ROWS:
            break
    return content_hash(torch.cat(parts)[:CONTENT_ROWS].numpy()) if parts else ""


def _complete(model: TableModel, table: Table) -> Iterator[tuple[Tensor, Tensor]]:
    """The complete rows piece by piece: indices in the table, and features followed by context columns."""
    for rows in read_rows(table, model.preprocessor):
        complete = torch.from_numpy(rows.complete)
        numbers = rows.x if rows.context is None else torch.cat([rows.x, rows.context], dim=1)
        yield rows.first + complete.nonzero()[:, 0], numbers[complete]


@torch.no_grad()
def _round_trip(model: TableModel, y: Tensor, context: Tensor | None) -> tuple[Tensor, float, float]:
    """The noise of encoded rows, the largest error of the rows after the inverse, and its largest residual."""
    noise, errors = [], []
    for start in range(0, len(y), _BATCH):
        rows = slice(start, start + _BATCH)
        side = None if context is None else context[rows]
        z, _ = model.flow.bijection(y[rows], side)
        inverse = model.flow.invert(z, side, on_failure="return")
        noise.append(z.cpu())
        errors.append(torch.stack([(inverse.x - y[rows]).abs().amax(), inverse.residual.amax()]))
    # amax propagates NaN.
    error, residual = torch.stack(errors).amax(0).nan_to_num(nan=torch.inf, posinf=torch.inf).tolist()
    return torch.cat(noise), error, residual


def _sample(model: TableModel, context: Tensor | None, count: int) -> Tensor:
    """Samples; those of a conditional model have contexts of random rows."""
    generator = torch.Generator(next(model.flow.parameters()).device).manual_seed(0)
    if context is None:
        return model.preprocessor.inverse(model.flow().sample((count,), generator=generator).cpu())
    context = context[torch.randint(len(context), (count,), generator=seeded(0))]
    return model.preprocessor.inverse(model.flow(context).sample(generator=generator).cpu())


def _view(column: Column, *values: Tensor) -> ColumnView:
    data, samples = (part.numpy() for part in values)
    kind: Kind = "integer" if "int" in column.type else "number"
    if column.kind == "category":
        kind, names = "category", np.array([str(value) for value in column.categories])
        data, samples = (names[codes.astype(int)] for codes in (data, samples))
    return ColumnView(column.name, kind, data, samples, column.describe(), column.step if column.rounded else 0.0)


def _baselines(model: TableModel, rows: _HeldOut, x: Tensor) -> list[Score]:
    if model.preprocessor.context_columns or len(rows.train) < 2:
        return []
    train, _ = model.preprocessor.maps(model.preprocessor.dequantize(rows.train, seeded(0, 2)))
    test, ladj = model.preprocessor.maps(x)
    densities = {"Gaussian, full covariance": gaussian_log_density, "kernel density": kde_log_density}
    return [Score(name, log_p(train.numpy(), test.numpy()) + ladj.numpy()) for name, log_p in densities.items()]


def _anomalies(model: TableModel, rows: _HeldOut) -> list[Anomaly]:
    worst = np.argsort(rows.log_density)[:_ANOMALIES]
    percentiles = model.anomaly_percentile(rows.log_density[worst])
    return [
        Anomaly(int(i), int(rows.ids[i]) + 1, float(rows.log_density[i]), float(percentile))
        for i, percentile in zip(worst, percentiles, strict=True)
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
