"""From a table to a model of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Preprocessor, Survey, Table, open_table, survey
from ..data.content import CONTENT_ROWS, content_hash
from ..data.reader import columns_to_numbers
from ..data.sources import seeded
from ..data.split import Ids, Split, split_rows
from ..data.whitening import whitening
from ..errors import ArgumentError
from ..flows.sinusoidal import SinusoidalFlow
from ..training import ArrowRows, MemoryRows, RowSource, fit
from ..training.fingerprint import fingerprint
from ..training.progress import make_progress
from .defaults import table_recipe
from .fitted import quantiles_of, run_facts
from .table import TableModel

#: Rows of a large table that decide the linear map, and the quantiles of the scores.
_ENOUGH = 100_000
#: Rows of a large table that are validated on.
_VALIDATION = 20_000


def fit_table(
    data: Any,
    *,
    context: list[str] | None = None,
    drop: list[str] | None = None,
    missing: str = "refuse",
    maps: dict[str, str] | None = None,
    conditioning: str = "full",
    steps: int | None = None,
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
        data: a path to CSV, Parquet or NumPy data, a pandas or Polars frame, an Arrow table, an array.
        context: columns that the density is conditioned on.
        drop: columns to leave out.
        missing: ``"refuse"`` rows with missing values, or ``"drop"`` them.
        maps: a map for a column, instead of the one that its values suggest: ``"linear"``, ``"log"``,
            ``"logit"`` or ``"category"``.
        conditioning: the kind of flow, ``"full"`` or ``"shift"``.
        steps: the most training steps; by default they depend on the number of rows.
        seed: of the split, of the weights, and of the order of the rows.
        device: ``"auto"`` takes a GPU if there is one.
        checkpoint: a folder for checkpoints.
        checkpoint_minutes: minutes between checkpoints.
        resume: go on from that folder's checkpoint.
        progress: whether to show it.
        test: whether to keep rows for testing.
        architecture: arguments of :class:`~sinuflow.SinusoidalFlow` instead of the defaults.
        training: arguments of :func:`~sinuflow.fit` instead of the defaults.

    Of the rows, a tenth is kept for validation and a tenth for testing (15 % of small tables).
    """
    if not 0 <= seed < 2**63:
        raise ArgumentError(f"seed must be a whole number, 0 or more; got {seed}")
    started = time.monotonic()
    table = open_table(data)
    found = survey(table, context or [], drop or [], missing, maps, seed)
    split = split_rows(found.usable, found.total, seed, test)
    rows = _Rows(table, found, split, seed)
    preprocessor = rows.preprocessor
    recipe = table_recipe(len(split.train), len(preprocessor.features), conditioning)
    recipe = recipe.override(architecture, {"checkpoint_minutes": checkpoint_minutes, **(training or {})}, steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = SinusoidalFlow(len(preprocessor.features), preprocessor.context_width, **recipe.flow)
    if checkpoint is not None:
        shown = make_progress(progress)
        rows.identify(shown.say)
        shown.close()
    result = fit(
        flow,
        rows.source(split.train),
        rows.source(_some(split.validation, _VALIDATION, seed)),
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
        device=device,
        seed=seed,
        **recipe.training,
    )
    model = TableModel(flow, preprocessor, split, torch.zeros(0), result.history, {})
    model.quantiles = quantiles_of(model.score_numbers(*rows.sample))
    model.facts = {
        "table": Path(table.name).name,
        "rows": found.total,
        "content": rows.content,
        "used_rows": len(found.usable),
        "train_rows": len(split.train),
        "validation_nll": result.best_nll,
        "parameters": sum(p.numel() for p in flow.parameters()),
        **run_facts(result, seed, started),
    }
    return model


def _some(ids: Ids, most: int, seed: int) -> Ids:
    """These rows, or a random choice of them: tables are often sorted."""
    if len(ids) <= most:
        return ids
    return np.sort(np.random.default_rng([seed, 1]).choice(ids, most, replace=False))


class _Rows:
    """The rows of a surveyed table as training data, in memory or streamed."""

    def __init__(self, table: Table, found: Survey, split: Split, seed: int) -> None:
        self._table, self._found = table, found
        plain = Preprocessor(found.columns(split.train))
        names = [c.name for c in plain.columns]
        self._order = [names.index(c.name) for c in [*plain.features, *plain.given]]
        self._size = len(plain.features)
        train = _some(split.train, _ENOUGH, seed)
        #: Training rows, at most as many as are enough to see what they are like.
        self.sample = self._split(found.numbers[np.isin(found.rows, train, assume_unique=True)])
        self.content = content_hash(found.numbers[:CONTENT_ROWS, self._order])
        y, _ = plain.prepare(plain.dequantise(self.sample[0], seeded(0)))
        self.preprocessor = plain.with_whitening(*whitening(y))
        self.identity = ""

    def identify(self, say: Callable[[str], None]) -> None:
        """Hash all rows, including test rows, so that a resumed run can detect another table."""
        everything = fingerprint(self.source(self._found.usable), say)
        self.identity = f"{everything} {self.preprocessor.encoding}"

    def _split(self, numbers: np.ndarray) -> tuple[Tensor, Tensor | None]:
        ordered = torch.from_numpy(numbers[:, self._order])
        return ordered[:, : self._size], ordered[:, self._size :] if len(self._order) > self._size else None

    def source(self, ids: Ids) -> RowSource:
        """These rows, to train on or to validate with."""
        encode, identity = self.preprocessor.encode, self.identity
        if self._found.complete:
            held = np.isin(self._found.rows, ids, assume_unique=True)
            return MemoryRows(*self._split(self._found.numbers[held]), encode, identity=identity)
        keep = np.zeros(self._found.total, dtype=bool)
        keep[ids] = True
        wanted = [*self.preprocessor.features, *self.preprocessor.given]

        def to_numbers(batch: Any) -> np.ndarray:
            return columns_to_numbers(wanted, batch, 0, self._table)

        return ArrowRows(
            self._table.dataset,
            self._size,
            len(self.preprocessor.given),
            columns=[c.name for c in wanted],
            encode=encode,
            identity=identity,
            to_numbers=to_numbers,
            keep=keep,
        )
