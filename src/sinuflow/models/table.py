"""A fitted table: a flow, and the preprocessing between the table's columns and the flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..checks import LONGEST_NAME, anything, choice, fields, flag, integer, items, number, one_of, optional, text, whole
from ..data import Column, Preprocessor, open_table
from ..data.columns import MAP_NAMES, quoted_list
from ..data.split import Split
from ..data.tables import Rows, read_rows
from ..data.values import code_of, table_arrays
from ..errors import DataError
from ..flows.flow import Flow
from ..flows.inversion import CERTIFICATES, CertifiedDraws, Certify
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow
from .calibration import percentile
from .fitted import FittedModel, model_schema
from .ranking import RankedRows, Ranking
from .sampling import RowSampler
from .scores import score
from .summary import notices

Array = np.ndarray[Any, np.dtype[np.float64]]

#: The number of rows that are scored or drawn at once.
_ROWS = 4096


_OBJECT = fields({}, others=anything)
_ESTIMATOR = fields({"parameters": _OBJECT, "features": integer(1), "names": optional(items(text(LONGEST_NAME)))})
_NAMES = items(text(LONGEST_NAME))
#: The options by which rows and columns were chosen.
_CHOICES = fields(
    {
        "context": _NAMES,
        "drop": _NAMES,
        "missing": one_of("model", "drop", "refuse"),
        "maps": fields({}, others=one_of(*MAP_NAMES)),
        "test": flag,
        "seed": integer(0, 2**63),
    },
    {"bounds": fields({}, others=items(optional(number()), length=2))},
)
_SCHEMA = model_schema(
    {"preprocessing": fields({"columns": items(_OBJECT, least=1)}, {"levels": one_of("atoms", "categories")})},
    {
        **dict.fromkeys(("rows", "used_rows", "train_rows", "parameters"), integer(1)),
        "table": text(),
        "content": text(200),
        "torch": text(200),
    },
    {
        "validation_nll": optional(number(finite=False)),
        "estimator": _ESTIMATOR,
        "calibration_rows": integer(1),
        "set_aside": fields({}, others=text()),
        "keep": fields({}, others=text(100)),
        "unread": fields({}, others=integer(1)),
        "choices": _CHOICES,
        "continued": items(integer()),
    },
)


@dataclass(eq=False, repr=False)
class TableModel(FittedModel):
    """The density of a table, in the units of its columns: base ∘ flow ∘ preprocessing.

    Args:
        preprocessor: the bijection from the table's units to the flow's input, in float64.
        split: the training, validation and test rows.
        quantiles: quantiles of the log-densities of the calibration rows, in increasing order.
        anomaly_quantiles: quantiles of minus their anomaly scores; None for models of version 0.1.0.
        ranking: the anomaly score as a function; None for models of version 0.1.0.

    The other arguments are those of all fitted models.
    """

    flow: SinusoidalFlow | MixedFlow
    preprocessor: Preprocessor
    split: Split
    quantiles: Tensor
    history: list[dict[str, Any]]
    facts: dict[str, Any]
    anomaly_quantiles: Tensor | None = None
    ranking: Ranking | None = None
    kind, description, schema = "table", "model of a table", _SCHEMA
    tensor_names: ClassVar = {"preprocessing/mean", "preprocessing/factor"}
    tensor_names |= {"split/validation", "split/test", "split/unused"}

    def __repr__(self) -> str:
        names = quoted_list(self.columns, 5)
        return f"<{type(self).__name__} of {self.facts.get('table', 'a table')} with the columns {names}>"

    @property
    def format_version(self) -> int:
        """Version 1 has neither cells nor users' maps."""
        return 1 if all(c.map in MAP_NAMES and not c.rows for c in self.preprocessor.columns) else 2

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the table's order."""
        return list(dict.fromkeys(c.table_column for c in self.preprocessor.columns))

    def log_prob(self, data: Any) -> Array:
        """The log-density of every row of a table, in nats and in the columns' own units.

        ``data`` is anything that can be opened as a table: a frame, a path, an array.

        Categories, missing values and atoms (repeated values in a continuous column) contribute their probability;
        values on a grid, such as integers, their probability divided by the grid's step; and other values their
        density. The same row always has the same score: see :meth:`Preprocessor.score_points
        <sinuflow.data.preprocessing.Preprocessor.score_points>`. A value that the column cannot have, such as a
        category that was never seen, has the probability 1 / (n + 2) after n training rows, and the density of the
        other columns is not conditional on it.
        """
        scores = [self.score_rows(rows) for rows in read_rows(open_table(data), self.preprocessor)]
        result = np.concatenate(scores) if scores else np.empty(0)
        missing = int(np.isnan(result).sum())
        if missing:
            raise DataError(f"{missing} rows have missing values: fill them in, or leave those rows out")
        return result

    @property
    def notices(self) -> list[str]:
        """Notices for the user: columns that are set aside, cells that count as missing, whether to train longer."""
        return self.notices_for("sinuflow fit TABLE -o MODEL")

    def notices_for(self, command: str) -> list[str]:
        """The notices; ``command`` is the command line that the advice to train longer extends."""
        return notices(self, command)

    @property
    def models_missing(self) -> bool:
        """Whether rows with missing values have a log-density, as they do except for models of format 1."""
        return self.preprocessor.cells is not None

    def can_score(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have a log-density.

        These are the complete rows for a model of format 1, and otherwise the rows without missing values in context
        columns that had none in training.
        """
        if not self.models_missing:
            return rows.complete
        if rows.context is None:
            return np.ones_like(rows.complete)
        needed = [i for i, c in enumerate(self.preprocessor.context_columns) if not c.missing]
        return np.asarray(~rows.context[:, needed].isnan().any(1))

    def score_rows(self, rows: Rows) -> Array:
        """The log-density of rows of a table; NaN for rows that :meth:`can_score` excludes."""
        scorable = self.can_score(rows)
        result = np.full(len(scorable), np.nan)
        selected = rows.select(scorable)
        result[scorable] = self.score_numbers(selected.x, selected.context).numpy() + selected.log_relations
        failed = np.isnan(result) & scorable
        if failed.any():
            raise DataError(
                f"the log-density of row {rows.first + int(failed.argmax()) + 1} is NaN: "
                "the model's parameters are degenerate; fit the model again"
            )
        return result

    @torch.no_grad()
    def score_numbers(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of rows of numbers, given the values of their context columns."""
        parts, like = [], self._like
        preprocessor = self.preprocessor.on(like.device)
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            encoded = None if context is None else preprocessor.context(context[rows].to(like.device)).to(like)
            levels, cells = preprocessor.locate(x[rows].to(like.device))
            parts.append(score(self.flow, preprocessor, levels, cells, encoded).cpu())
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def anomaly_score(self, data: Any) -> Array:
        r"""The anomaly score of every row of a table: the higher, the more anomalous.

        .. math:: -\frac{\log p(x) - \log m(x)}{s_p} - \frac{\log k(x)}{s_k}

        p is the density of :meth:`log_prob`, m a reference measure that makes the quotient independent of the units of
        the columns (:class:`~sinuflow.data.reference_measure.ReferenceMeasure`), and k a kernel density estimate
        (:class:`~sinuflow.data.kernel_density.KernelDensity`), which is robust where training rows are sparse.
        :math:`s_p` and :math:`s_k` are the spreads of the two terms among training rows, so that both have the same
        weight.
        """
        scores = [
            self.anomaly_score_rows(r, self.score_rows(r)) for r in read_rows(open_table(data), self.preprocessor)
        ]
        return np.concatenate(scores) if scores else np.empty(0)

    def anomaly_score_rows(self, rows: Rows, log_density: Array) -> Array:
        """The :meth:`anomaly_score` of rows with these log-densities."""
        if self.ranking is None:  # a model of version 0.1.0
            return -log_density
        ranked = RankedRows(rows.x, rows.restored, rows.context)
        return np.asarray(self.ranking(ranked, torch.from_numpy(log_density)).numpy())

    def anomaly_percentile(self, scores: Any) -> Array:
        """The percentage of calibration rows that are less anomalous: 100 is more anomalous than all of them.

        Args:
            scores: a table, whose rows are ranked by their :meth:`anomaly_score`, as ``sinuflow score`` does; or an
                array of log-densities, which are ranked as such.

        Calibration rows were held out; tables under 2,000 rows are cross-fitted, so that every row is one. Of n
        calibration rows, the highest percentile is 100 n / (n + 1). Models of version 0.1.0 compare with training rows,
        which makes fresh rows look more anomalous than they are.
        """
        if isinstance(scores, np.ndarray) and scores.ndim < 2:
            return self._percentile(scores, self.quantiles)
        return self.percentile_of_score(self.anomaly_score(scores))

    def percentile_of_score(self, anomaly_score: Array) -> Array:
        """The percentile of anomaly scores."""
        quantiles = self.quantiles if self.anomaly_quantiles is None else self.anomaly_quantiles
        return self._percentile(-anomaly_score, quantiles)

    def _percentile(self, log_density: Array, quantiles: Tensor) -> Array:
        if "calibration_rows" in self.facts:
            return percentile(log_density, quantiles.numpy(), self.facts["calibration_rows"])
        grid = quantiles.numpy()
        below = np.interp(log_density, grid, np.linspace(0, 1, len(grid)))
        return np.where(np.isnan(log_density), np.nan, 100 * (1 - below))

    def sample(
        self,
        count: int,
        given: Mapping[str, Any] | None = None,
        seed: int | None = None,
        certify: Certify = "layers",
        complete: bool = False,
    ) -> Any:
        """Draw rows, as an Arrow table with the columns of the training table.

        Values are missing as often as in the training table or, with ``complete``, never: each value is then drawn
        given those before it and that it is not missing. Rows whose restored columns would have values that these
        columns cannot have, such as a share above 1, are drawn again.

        Guarantee: that of :meth:`FlowDistribution.sample <sinuflow.flows.distribution.FlowDistribution.sample>`, before
        integers, categories and repeated values are rounded. Where float32 is not enough, float64 is used.

        Args:
            count: the number of rows.
            given: the values of the context columns.
            seed: the same seed gives the same rows.
            certify: ``"layers"``, or ``"end-to-end"`` at the cost of one forward pass.
            complete: whether no value is missing.
        """
        import pyarrow

        count = whole("count", count, least=0)
        batches = [drawn.values for drawn in self.draw_batches(count, given, seed, certify, complete)]
        if not batches:  # the types are those of a row
            context = {c.name: c.categories[0] if c.categories else c.low for c in self.preprocessor.context_columns}
            return self.sample(1, context, 0).slice(0, 0)
        return pyarrow.Table.from_batches(batches)

    def draw_batches(
        self,
        count: int,
        given: Mapping[str, Any] | None,
        seed: int | None,
        certify: Certify = "layers",
        complete: bool = False,
    ) -> Iterator[CertifiedDraws]:
        """The record batches of :meth:`sample`, each with its largest end-to-end residual if that is certified."""
        import pyarrow

        choice("certify", certify, CERTIFICATES)
        context = self._context(given or {})
        sampler = RowSampler(self, self._fixed(given or {}), context, seed, certify, complete)
        for start in range(0, count, _ROWS):
            values, residual = sampler.possible_rows(min(_ROWS, count - start))
            arrays = table_arrays(self.preprocessor.columns, values)
            yield CertifiedDraws(pyarrow.record_batch(arrays, names=self.columns), residual)

    def _fixed(self, given: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of constant and context columns, which are not drawn."""
        fixed = {c.name: 0.0 for c in self.preprocessor.columns if c.kind == "constant"}
        columns = [c for c in self.preprocessor.context_columns if c.name in given]
        return fixed | {c.name: _context_number(c, given[c.name]) for c in columns}

    def _context(self, given: Mapping[str, Any]) -> Tensor | None:
        """The flow's context (1, context) for values of the context columns."""
        columns = self.preprocessor.context_columns
        names = [c.name for c in columns]
        possible = {c.name for c in self.preprocessor.columns if c.role == "context"}
        unknown = [name for name in given if name not in possible]
        if unknown:
            has = f"its context columns are {', '.join(map(repr, names))}" if names else "it has no context columns"
            raise DataError(f"the model cannot be conditioned on {unknown[0]!r}: {has}")
        absent = [name for name in names if name not in given]
        if absent:
            raise DataError(f"the model is conditional: give a value for {', '.join(map(repr, absent))}")
        if not names:
            return None
        numbers = torch.tensor([[_context_number(c, given[c.name]) for c in columns]], dtype=torch.float64)
        context = self.preprocessor.context(numbers)
        if not bool(context.isfinite().all()):
            at = names[int((~context.isfinite()).any(0).nonzero()[0]) if len(names) == context.shape[1] else 0]
            raise DataError(f"{at!r} cannot be {given[at]!r}: it is outside of the range of its map")
        return context.to(self._like)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {f"preprocessing/{name}": t for name, t in self.preprocessor.tensors().items()}
        for name, ids in self.split.stored().items():
            small = not len(ids) or ids[-1] < 2**31
            tensors[f"split/{name}"] = torch.from_numpy(ids.astype(np.int32 if small else np.int64))
        if self.anomaly_quantiles is not None:
            tensors["anomaly/quantiles"] = self.anomaly_quantiles
        if self.ranking is not None:
            tensors |= {f"ranking/{name}": t for name, t in self.ranking.tensors().items()}
        return {"preprocessing": self.preprocessor.as_dict()}, tensors

    @classmethod
    def parse(
        cls, config: dict[str, Any], groups: dict[str, dict[str, Tensor]], flow: Flow
    ) -> tuple[Preprocessor, Split]:
        preprocessor = Preprocessor.from_dict(config["preprocessing"], groups["preprocessing"])
        rows = groups["split"]
        if any(t.dim() != 1 or t.dtype not in (torch.int32, torch.int64) for t in rows.values()):
            raise ValueError("its split must be lists of row numbers")
        split = Split(config["facts"]["rows"], **{name: t.numpy() for name, t in rows.items()})
        split.check()
        sizes = list(flow.categories.sizes) if isinstance(flow, MixedFlow) else []
        if (flow.features, flow.context, sizes) != (preprocessor.size, preprocessor.context_width, preprocessor.sizes):
            raise ValueError("the size of its flow does not match its columns")
        return preprocessor, split


def _context_number(column: Column, value: Any) -> float:
    """The value of a context column as a number or code."""
    if column.kind == "category":
        code = code_of(column, value)
        if code is None:
            raise DataError(f"{column.name!r} cannot be {value!r}: the model knows {quoted_list(column.categories)}")
        return float(code)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{column.name!r} must be a number; got {value!r}") from None
    if not np.isfinite(number):
        raise DataError(f"{column.name!r} must be finite; got {value!r}")
    return number
