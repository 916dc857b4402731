"""Fitting a model to a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data import Preprocessor, Survey, Table, open_table, survey
from ..data.arrow_rows import ArrowRows
from ..data.atoms import LEVELS_ROWS
from ..data.columns import Bounds, declared_bounds
from ..data.inspect import MapChoice
from ..data.preprocessing import LevelKinds
from ..data.sources import CONTENT_ROWS, MemoryRows, RowSource, content_hash, fingerprint, seeded
from ..data.split import Ids, Split, folds, split_rows
from ..data.tables import columns_to_numbers
from ..errors import ArgumentError
from ..flows.categorical import CategoricalMADE
from ..flows.flow import Flow
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow
from ..training import FitResult
from ..training.progress import make_progress
from .calibration import calibration_quantiles
from .continuation import (
    Choices,
    check_same_columns,
    check_same_rows,
    extended_facts,
    extended_history,
    hyperparameters,
    starting_model,
    trained_flow,
)
from .defaults import Recipe, continued, table_recipe
from .fitted import Run
from .ranking import RankedRows, Ranking
from .table import TableModel

_T = TypeVar("_T")
#: The maximum number of rows for the whitening, and of rows for validation and for calibration.
_MAX_STATISTICS_ROWS, _MAX_VALIDATION_ROWS = 100_000, 20_000
#: The maximum number of rows, and of one-hot inputs, that are drawn to match the frequencies of levels.
_MAX_DRAWN_ROWS, _MAX_DRAWN_INPUTS = 50_000, 20_000_000
#: The maximum number of hidden units, in each layer of the network for levels, for each level of the columns.
_UNITS_PER_LEVEL = 8
#: Tables with fewer rows are cross-fitted for calibration; the number of folds.
_MIN_HELD_OUT_ROWS, _FOLDS = 2_000, 4


def fit_table(
    data: Any,
    *,
    context: list[str] | None = None,
    drop: list[str] | None = None,
    missing: str = "model",
    maps: Mapping[str, MapChoice] | None = None,
    bounds: Mapping[str, Bounds] | None = None,
    conditioning: str = "full",
    steps: int | None = None,
    minutes: float | None = None,
    start: TableModel | str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_minutes: float = 5.0,
    resume: bool = False,
    progress: bool = True,
    test: bool = True,
    architecture: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> TableModel:
    """Learn the density of a table.

    Args:
        data: a path, a pandas or Polars frame, an Arrow table, a DuckDB relation, an array.
        context: columns that the density is conditioned on.
        drop: columns to leave out.
        missing: ``"model"`` missing values as values of their own, ``"drop"`` rows that have some, or ``"refuse"``
            tables with missing values.
        maps: a map for a column, instead of the one that its values suggest: ``"linear"``, ``"log"``,
            ``"logit"``, ``"category"``, ``"auto"`` to keep a column that looks like row numbers or identifiers,
            ``"day-first"``, ``"month-first"``, ``"decimal-point"`` or ``"decimal-comma"`` for ambiguous texts, or a
            registered :class:`~sinuflow.bijections.columns.ColumnMap` of your own, as an instance or as a class with a
            ``fit``.
        bounds: the least and the largest value that a column may have, such as ``(0, None)``: samples respect them, and
            other values score as values that the column cannot have.
        conditioning: the kind of flow, ``"full"`` or ``"shift"``.
        steps: the maximum number of training steps; the default depends on the number of rows, or on ``minutes``.
        minutes: the maximum minutes of training, including those before an interruption. For tables under 2,000 rows,
            they include cross-fitting, which takes up to four fifths of them. Reading the table takes further time.
        start: a model of this table, or its file, to train further with its columns, split and flow; arguments that
            choose these are errors. The new weights are used only if they are better on the validation rows.
        seed: determines the split, the initial weights, and the order of the rows.
        device: ``"auto"`` takes a GPU if there is one.
        checkpoint, checkpoint_minutes, resume: a folder for checkpoints, the minutes between them, and whether to
            continue from the last one.
        progress: whether to show a progress bar.
        test: whether to hold out rows for testing.
        architecture: arguments of :class:`~sinuflow.SinusoidalFlow` instead of the defaults.
        training: arguments of :func:`~sinuflow.fit` instead of the defaults.

    A tenth of the rows is held out for validation, and a tenth for testing (15 % of small tables).
    """
    run = Run(steps, minutes, seed, device, checkpoint, checkpoint_minutes, resume, progress, architecture, training)
    if start is not None:
        given: dict[str, object] = {"context": context, "drop": drop, "maps": maps, "bounds": bounds, "seed": seed}
        given["missing"] = missing != "model"
        given |= {"conditioning": conditioning != "full", "test": not test, "architecture": architecture}
        return _continued(run, data, starting_model(start, given))
    limits = {name: declared_bounds(name, pair) for name, pair in _by_column("bounds", bounds, (0, 1)).items()}
    wishes = _by_column("maps", maps, "log")
    choices = Choices(_names("context", context), _names("drop", drop), missing, wishes, test, seed, limits)
    table, surveyed, split = _read(data, choices)
    rows = _TableRows(table, surveyed, split, seed)
    preprocessor = rows.preprocessor
    recipe = table_recipe(len(split.train), conditioning)
    flow = _build(run, recipe, preprocessor)
    result = _train(run, flow, recipe, rows)
    rows.match_frequencies(flow)
    model = TableModel(flow, preprocessor, split, torch.zeros(0), result.history, {})
    scores = _calibration_scores(run, model, recipe, rows, result.part_steps)
    _calibrate(model, scores)
    model.facts |= {
        "calibration_rows": len(scores),
        "table": Path(table.name).name,
        "set_aside": {name: reason for name, (reason, _) in surveyed.set_aside.items()},
        "keep": {name: keep for name, (_, keep) in surveyed.set_aside.items() if keep},
        "unread": surveyed.unread,
        "choices": choices.stored(),
        "rows": surveyed.total,
        "content": rows.content,
        "used_rows": len(surveyed.usable),
        "train_rows": len(split.train),
        "validation_nll": result.best_nll,
        "parameters": sum(p.numel() for p in flow.parameters()),
        **run.facts(result),
    }
    return model


def _names(argument: str, columns: Iterable[str] | None) -> list[str]:
    """An argument that is a list of columns."""
    if isinstance(columns, str):
        raise ArgumentError(f"{argument} must be a list of columns, such as [{columns!r}]; got {columns!r}")
    return [] if columns is None else list(columns)


def _by_column(argument: str, values: Mapping[str, _T] | None, example: object) -> Mapping[str, _T]:
    """An argument that is a mapping of columns to values."""
    if values is not None and not isinstance(values, Mapping):
        raise ArgumentError(f"{argument} must be a dict of columns, such as {{'size': {example!r}}}; got {values!r}")
    return values or {}


def _continued(run: Run, data: Any, start: TableModel) -> TableModel:
    """The start model after further training, with its old weights if the new ones are not better."""
    choices = Choices.of(start)
    run = replace(run, seed=choices.seed)
    table, surveyed, split = _read(data, choices)
    check_same_columns(start, table, surveyed)
    rows = _TableRows(table, surveyed, split, run.seed, start.preprocessor)
    check_same_rows(start, table, surveyed.total, split, rows.content)
    flow = trained_flow(start)
    recipe = table_recipe(len(split.train))
    recipe = replace(recipe, **hyperparameters(flow))
    result = _train(run, flow, continued(recipe), rows, start.facts["steps"])
    history = extended_history(start, result)
    ranking = (start.anomaly_quantiles, start.ranking)
    model = TableModel(flow, start.preprocessor, split, start.quantiles, history, {}, *ranking)
    calibration_facts = {}
    if result.best_step:
        rows.match_frequencies(flow)
        before = start.facts["steps"]
        scores = _calibration_scores(run, model, recipe, rows, [before + step for step in result.part_steps])
        _calibrate(model, scores)
        calibration_facts = {"calibration_rows": len(scores)}
    new = {"table": Path(table.name).name, "validation_nll": result.best_nll, **calibration_facts}
    model.facts |= extended_facts(start, {**new, **run.facts(result, continued=True)})
    return model


def _read(data: Any, choices: Choices) -> tuple[Table, Survey, Split]:
    """The table, its survey, and the split of its rows."""
    table = open_table(data)
    arguments = (choices.context, choices.drop, choices.missing, choices.maps, choices.seed, choices.bounds)
    surveyed = survey(table, *arguments)
    return table, surveyed, split_rows(surveyed.usable, surveyed.total, choices.seed, choices.test)


def _train(run: Run, flow: Flow, recipe: Recipe, rows: _TableRows, steps_before: int = 0) -> FitResult:
    """Train a flow on the training rows; ``steps_before`` is the number of steps of earlier runs."""
    if run.checkpoint is not None:
        progress = make_progress(run.progress)
        rows.identify(progress.say)
        progress.close()
    validation = rows.source(_subsample(rows.split.validation, _MAX_VALIDATION_ROWS, run.seed))
    time_fraction = 1 / (1 + _FOLDS) if rows.cross_fitted else 1.0
    return run.train(flow, recipe, rows.source(rows.split.train), validation, time_fraction, steps_before)


def _calibrate(model: TableModel, scores: Tensor) -> None:
    """Store the quantiles of calibration scores (n, 2)."""
    model.quantiles, model.anomaly_quantiles = (calibration_quantiles(column.contiguous()) for column in scores.mT)


def _calibration_scores(run: Run, model: TableModel, recipe: Recipe, rows: _TableRows, steps: list[int]) -> Tensor:
    """Scores (n, 2) of held-out rows or, for a small table, of every usable row by cross-fitting.

    The columns are the log-density, and minus the anomaly score.
    """
    rows.fit_ranking(model)
    if rows.cross_fitted:
        return _cross_fitted_scores(run, rows.table, rows.survey, recipe, steps)
    return rows.scores(model, _subsample(rows.split.held_out, _MAX_VALIDATION_ROWS, run.seed))


def _cross_fitted_scores(run: Run, table: Table, surveyed: Survey, recipe: Recipe, steps: list[int]) -> Tensor:
    """The scores of every usable row, by models that were fitted to the other folds for the same number of steps."""
    parts = []
    for split in folds(surveyed.usable, surveyed.total, run.seed, _FOLDS):
        rows = _TableRows(table, surveyed, split, run.seed)
        flow = _build(run, recipe, rows.preprocessor)
        run.refit(flow, recipe, rows.source(split.train), steps, 1 / (1 + _FOLDS))
        rows.match_frequencies(flow)
        model = TableModel(flow, rows.preprocessor, split, torch.zeros(0), [], {})
        rows.fit_ranking(model)
        parts.append(rows.scores(model, split.validation))
    return torch.cat(parts)


def _build(run: Run, recipe: Recipe, preprocessor: Preprocessor) -> SinusoidalFlow | MixedFlow:
    """An untrained flow for the preprocessed columns."""
    context, sizes = preprocessor.context_width, preprocessor.sizes
    flow = run.build(SinusoidalFlow, recipe, len(preprocessor.axis_features), context + sum(sizes))
    if not sizes:
        return flow
    options = dict(recipe.categories or {})
    if "hidden" in options:  # no more units than the levels need
        options["hidden"] = tuple(min(units, _UNITS_PER_LEVEL * sum(sizes)) for units in options["hidden"])
    with run.seeded():
        return MixedFlow(CategoricalMADE(sizes, context=context, **options), flow)


def _subsample(ids: Ids, size: int, seed: int) -> Ids:
    """At most ``size`` of these rows, at random, because tables are often sorted."""
    if len(ids) <= size:
        return ids
    return np.sort(np.random.default_rng([seed, 1]).choice(ids, size, replace=False))


def _make_preprocessor(surveyed: Survey, split: Split) -> Preprocessor:
    levels: LevelKinds = "atoms" if len(split.train) >= LEVELS_ROWS else "categories"
    return Preprocessor(surveyed.columns(split.train), levels)


class _TableRows:
    """The rows of a surveyed table as sources, in memory or streamed."""

    def __init__(
        self, table: Table, surveyed: Survey, split: Split, seed: int, preprocessor: Preprocessor | None = None
    ) -> None:
        self.table, self.survey, self.split = table, surveyed, split
        #: Whether the calibration scores are those of cross-fitting, because there are few rows.
        self.cross_fitted = len(surveyed.usable) < _MIN_HELD_OUT_ROWS
        self.preprocessor = _make_preprocessor(surveyed, split) if preprocessor is None else preprocessor
        self._columns = [*self.preprocessor.features, *self.preprocessor.context_columns]
        self._index = {c.name: i for i, c in enumerate(self.preprocessor.columns)}
        self._order = [self._index[c.name] for c in self._columns]
        #: A random sample of training rows and their context, for the whitening.
        self.sample = self.in_memory(_subsample(split.train, _MAX_STATISTICS_ROWS, seed))
        self.content = content_hash(surveyed.numbers[:CONTENT_ROWS, self._order])
        if preprocessor is None:
            self.preprocessor.initialize(self.sample[0], seeded(0))
        self.identity = ""

    def identify(self, say: Callable[[str], None]) -> None:
        """Hash all rows, including test rows, so that a resumed run can detect another table."""
        rows = fingerprint(self._source(self.survey.usable, raw=True), say)
        self.identity = f"{rows} {self.preprocessor.encoding}"

    def in_memory(self, ids: Ids) -> tuple[Tensor, Tensor | None]:
        """The rows with these indices that the survey holds in memory, and their context."""
        selected = np.isin(self.survey.rows, ids, assume_unique=True)
        rows = torch.from_numpy(self.survey.numbers[selected][:, self._order])
        size = len(self.preprocessor.features)
        return rows[:, :size], rows[:, size:] if len(self._order) > size else None

    def scores(self, model: TableModel, ids: Ids) -> Tensor:
        """The log-density and minus the anomaly score, (n, 2), of the rows with these indices in memory."""
        selected = np.isin(self.survey.rows, ids, assume_unique=True)
        numbers = {c.name: self.survey.numbers[selected, i] for i, c in enumerate(self.preprocessor.columns)}
        rows = self._ranked_rows(ids)
        log_density = model.score_numbers(rows.x, rows.context)
        log_density += torch.from_numpy(self.preprocessor.log_relations(numbers))
        assert model.ranking is not None
        return torch.stack([log_density, -model.ranking(rows, log_density)], dim=1)

    def match_frequencies(self, flow: Flow) -> None:
        """Correct the frequencies of the levels, which a regularized network does not match exactly."""
        if not isinstance(flow, MixedFlow):
            return
        like, (x, context) = next(flow.parameters()), self.sample
        preprocessor, categories = self.preprocessor.on(like.device), flow.categories
        frequencies = categories.frequencies(preprocessor.locate(x.to(like.device))[0].codes)
        count = min(_MAX_DRAWN_ROWS, _MAX_DRAWN_INPUTS // categories.width)
        if context is not None:
            selected = torch.randint(len(context), (count,), generator=seeded(0))
            context = preprocessor.context(context[selected].to(like.device)).to(like)
        categories.match_frequencies(frequencies, count, context, torch.Generator(like.device).manual_seed(0))

    def fit_ranking(self, model: TableModel) -> None:
        """Fit the anomaly score of a trained model."""
        training = self._ranked_rows(_subsample(self.split.train, _MAX_STATISTICS_ROWS, 0))
        model.ranking = Ranking.fit(self.preprocessor, training, model.score_numbers)

    def _ranked_rows(self, ids: Ids) -> RankedRows:
        """The rows with these indices that the survey holds in memory, with their restored columns."""
        x, context = self.in_memory(ids)
        restored = [self._index[c.name] for c in self.preprocessor.restored]
        selected = np.isin(self.survey.rows, ids, assume_unique=True)
        return RankedRows(x, torch.from_numpy(self.survey.numbers[selected][:, restored]), context)

    def source(self, ids: Ids) -> RowSource:
        """The rows with these indices, for training or validation."""
        return self._source(ids)

    def _source(self, ids: Ids, raw: bool = False) -> RowSource:
        """The rows with these indices; with ``raw``, as numbers, whose hash is the same on all platforms."""
        prepare, encode = self.preprocessor.prepare, self.preprocessor.encode
        if self.survey.complete:
            x, context = self.in_memory(ids)
            return MemoryRows(x if raw else prepare(x), context, encode, identity=self.identity)
        keep = np.zeros(self.survey.total, dtype=bool)
        keep[ids] = True
        return ArrowRows(
            self.table.dataset,
            len(self.preprocessor.features),
            len(self.preprocessor.context_columns),
            columns=list(dict.fromkeys(c.table_column for c in self._columns)),
            encode=lambda x, context, generator: encode(self.preprocessor.on(x.device).prepare(x), context, generator),
            identity=self.identity,
            to_numbers=lambda batch: columns_to_numbers(self._columns, batch, 0, self.table),
            keep=keep,
        )
