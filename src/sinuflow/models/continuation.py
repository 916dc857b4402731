"""Continuing the training of a fitted table."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..bijections.columns import make_column_map
from ..data import Survey, Table
from ..data.columns import MAP_NAMES, Bounds
from ..data.inspect import MapChoice
from ..data.split import Split
from ..errors import ArgumentError, DataError
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow
from ..training import FitResult
from .loading import load
from .table import TableModel


@dataclass(frozen=True)
class Choices:
    """The arguments of :func:`sinuflow.fit_table` by which rows and columns were chosen.

    A model stores them, because a continued run needs the same rows and columns.
    """

    context: list[str]
    drop: list[str]
    missing: str
    maps: Mapping[str, MapChoice]
    test: bool
    seed: int
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """The choices as JSON, without users' maps, which the columns store."""
        maps = {name: choice for name, choice in self.maps.items() if isinstance(choice, str)}
        return vars(self) | {"maps": maps, "bounds": {name: list(limits) for name, limits in self.bounds.items()}}

    @staticmethod
    def of(model: TableModel) -> Choices:
        """The choices that a model was fitted with."""
        stored = model.facts.get("choices")
        if stored is None:
            raise DataError(
                f"the model of {model.facts['table']} was written by a version of Sinuflow that could not continue the "
                "training of a finished model: fit it again"
            )
        columns = [c for c in model.preprocessor.columns if c.map not in MAP_NAMES]
        user_maps = {c.table_column: make_column_map(c.map, {k: [v] for k, v in c.arguments.items()}) for c in columns}
        return Choices(**{**stored, "maps": {**stored["maps"], **user_maps}})


def starting_model(start: TableModel | str | os.PathLike[str], given: Mapping[str, object]) -> TableModel:
    """The model to train further; raises an error for arguments ``given`` that only a new model takes."""
    for name, value in given.items():
        if value:
            raise ArgumentError(
                f"{name} is for a new model: leave it out, because a continued run takes it from its start"
            )
    model = start if isinstance(start, TableModel) else load(start)
    if not isinstance(model, TableModel):
        raise ArgumentError(f"start must be a model of a table; got a {type(model).__name__}")
    return model


def trained_flow(model: TableModel) -> SinusoidalFlow | MixedFlow:
    """A copy of the model's flow in float32, for training."""
    return copy.deepcopy(model.flow).float()


def hyperparameters(flow: SinusoidalFlow | MixedFlow) -> dict[str, Any]:
    """The fields of a recipe that describe a flow."""
    config = flow.flow_config if isinstance(flow, MixedFlow) else flow.config
    fields = {"flow": {name: value for name, value in config.items() if name not in ("features", "context")}}
    if isinstance(flow, MixedFlow):
        arguments = flow.categories.spec().arguments
        fields["categories"] = {name: value for name, value in arguments.items() if name not in ("sizes", "context")}
    return fields


def check_same_columns(model: TableModel, table: Table, surveyed: Survey) -> None:
    """Refuse a table whose columns and categories are not those of the model."""
    columns = model.preprocessor.columns
    categories = {feature.name: tuple(feature.scan.categories) for feature in surveyed.features}
    other = sorted(categories.keys() ^ {c.name for c in columns})
    if other or list(categories) != [c.name for c in columns]:
        raise _other_table(
            table, f"it has other columns, such as {other[0]!r}" if other else "its columns have another order"
        )
    for c in columns:
        if c.kind == "category" and categories[c.name] != c.categories:
            raise _other_table(table, f"its column {c.name!r} has other values")


def check_same_rows(model: TableModel, table: Table, total: int, split: Split, content: str) -> None:
    """Refuse a table whose number of rows, missing values or first rows are not those of the model's table."""
    if total != model.facts["rows"]:
        raise _other_table(table, f"it has {total:,} rows instead of {model.facts['rows']:,}")
    new = split.stored()
    if content != model.facts["content"] or any(not np.array_equal(v, new[k]) for k, v in model.split.stored().items()):
        raise _other_table(table, "it has other rows")


def _other_table(table: Table, difference: str) -> DataError:
    return DataError(
        f"{table.name} is not the table that the model was fitted to: {difference}. Continue with that table, or fit a "
        "new model"
    )


def extended_history(model: TableModel, result: FitResult) -> list[dict[str, Any]]:
    """The records of all runs, with total steps and seconds."""
    before = {"step": model.facts["steps"], "seconds": model.facts["seconds"]}
    new = [r | {name: r[name] + total for name, total in before.items()} for r in result.history if r["step"]]
    return [*model.history, *new]


def extended_facts(model: TableModel, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a model after a continued run with these facts, with total steps and seconds."""
    before = model.facts
    best = before["steps"] + facts["best_step"] if facts["best_step"] else before["best_step"]
    totals = {name: before[name] + facts[name] for name in ("steps", "seconds")}
    continued = [*before.get("continued", []), before["steps"]]
    unchanged = {name: value for name, value in before.items() if name != "more_steps"}
    return {**unchanged, **facts, **totals, "best_step": best, "continued": continued}
