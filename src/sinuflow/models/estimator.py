"""The density of a table as a scikit-learn estimator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import SinuflowError, StorageError
from ..flows.inversion import Certify
from .loading import load
from .table import TableModel
from .table_fitting import fit_table

try:
    import pyarrow
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise SinuflowError(
        "SinusoidalDensity needs scikit-learn and pyarrow: pip install 'sinuflow[sklearn,cli]'"
    ) from None


@dataclass(eq=False, repr=False)
class SinusoidalDensity(DensityMixin, BaseEstimator):
    """Density estimation with a Sinusoidal Flow.

    Columns are preprocessed as by ``sinuflow fit``; densities are in the units of X. Arguments that
    are None have a default that depends on the number of rows.

    Args:
        conditioning: ``"full"`` or ``"shift"``.
        blocks, scales, waves, hidden, dropout: arguments of :class:`~sinuflow.SinusoidalFlow`.
        steps, batch_size, learning_rate, weight_decay, patience, device: arguments of :func:`~sinuflow.fit`.
        random_state: a seed; None for a different result at every call.
        verbose: whether to show a progress bar.

    Attributes:
        model_: the fitted :class:`~sinuflow.TableModel`.
        n_features_in_: columns seen in ``fit``.
        feature_names_in_: their names, if X had any.
        n_iter_: number of training steps.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> density = SinusoidalDensity(steps=20, hidden=(8,), blocks=1, random_state=0).fit(X)
        >>> density.score_samples(X).shape, density.sample(3).shape
        ((60,), (3, 2))
    """

    conditioning: str = "full"
    _: KW_ONLY
    blocks: int | None = None
    scales: int | None = None
    waves: int | None = None
    hidden: Sequence[int] | None = None
    dropout: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    patience: int | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: bool = False

    def fit(self, X: ArrayLike, y: Any = None) -> SinusoidalDensity:
        """Learn the density of the rows of X; y is ignored."""
        numbers = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        table = self._table(numbers)
        self.model_ = fit_table(
            table,
            maps=dict.fromkeys(table.column_names, "auto"),  # no column is set aside
            conditioning=self.conditioning,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            device=self.device,
            progress=self.verbose,
            test=False,
            architecture=self._not_none("blocks", "scales", "waves", "hidden", "dropout"),
            training=self._not_none("steps", "batch_size", "learning_rate", "weight_decay", "patience"),
        )
        self.model_.flow.double()  # so that a row's score does not depend on which other rows are scored with it
        self.n_iter_ = int(self.model_.facts["steps"])
        return self

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """The log-density of every row of X, in nats."""
        check_is_fitted(self)
        numbers = validate_data(self, X, dtype=np.float64, reset=False)
        return self.model_.log_prob(self._table(numbers))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean log-density of the rows of X, in nats."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None, certify: Certify = "layers") -> NDArray[np.float64]:
        """Draw rows; ``certify`` is that of :meth:`TableModel.sample <sinuflow.TableModel.sample>`."""
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        table = self.model_.sample(n_samples, seed=seed, certify=certify)
        return np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one model file, which ``sinuflow score`` can use as well."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        self.model_.facts["estimator"] = {
            "parameters": {name: _plain(value) for name, value in self.get_params().items()},
            "features": self.n_features_in_,
            "names": None if names is None else list(map(str, names)),
        }
        self.model_.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SinusoidalDensity:
        """Read what :meth:`save` wrote."""
        model = load(path)
        if not isinstance(model, TableModel) or "estimator" not in model.facts:
            raise StorageError(f"{path} does not hold an estimator; load it with sinuflow.load")
        stored = model.facts["estimator"]
        try:
            estimator = cls(**stored["parameters"])
        except TypeError as error:
            raise StorageError(f"{path} holds an estimator whose parameters this version does not have") from error
        if {stored["features"], len(stored["names"] or model.columns)} != {len(model.columns)}:
            raise StorageError(f"{path} holds an estimator that does not fit its columns")
        estimator.model_ = model
        model.flow.double()
        estimator.n_features_in_ = stored["features"]
        estimator.n_iter_ = int(model.facts["steps"])
        if stored["names"] is not None:
            estimator.feature_names_in_ = np.array(stored["names"], dtype=object)
        return estimator

    def _table(self, numbers: NDArray[np.float64]) -> pyarrow.Table:
        """Rows as a table with the names of the columns."""
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(numbers.shape[1])])
        return pyarrow.table({str(name): numbers[:, i] for i, name in enumerate(names)})

    def _not_none(self, *names: str) -> dict[str, Any]:
        """The parameters of these names that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _plain(value: Any) -> Any:
    """A parameter as a JSON value; random generators become None."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (str, bool, int, float)) else None
