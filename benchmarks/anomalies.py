"""Anomaly detection on the sets of ADBench, with defaults: Sinuflow, kNN, IsolationForest, LOF and ECOD.

Every method is fitted to the same half of the normal rows of a set, at most 10,000, and scores the same test rows: the
other half and all anomalies, or 10,000 of them with the same share of anomalies. The score of Sinuflow is its
``anomaly_score``. kNN (largest and mean distance to five neighbours), IsolationForest and LOF have columns that are
standardized by the training rows. AUROC and average precision (AUPR) in percent; a mean over sets has equal weights.

    python anomalies.py --data DIR [--sets NAME ...] [--methods NAME ...] [--splits N] [--workers N]
                        [--cache DIR] [--json FILE]

DIR holds ADBench's NAME.npz files, with the rows X and the labels y. kNN and ECOD are those of PyOD (`pip install
pyod`), with its defaults. Each of N worker processes uses one thread.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sinuflow
import sinuflow.models.table_fitting
from tasks import compare_methods, task_name, task_parser

#: The most training rows, and the most test rows.
MOST = 10_000
#: The methods, and their names in the table.
METHODS = {
    "sinuflow": "Sinuflow",
    "knn": "kNN",
    "knn_mean": "kNN (mean)",
    "iforest": "IsolationForest",
    "lof": "LOF",
    "ecod": "ECOD",
}
METRICS = {"auroc": "AUROC", "aupr": "AUPR", "seconds": "seconds"}


class Rows(NamedTuple):
    """The rows of a split, and the labels of test rows: 1 for an anomaly."""

    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray


def split_set(x: np.ndarray, y: np.ndarray, seed: int) -> Rows:
    """Half of the normal rows for training, and the other rows for testing; at most 10,000 of both.

    Example:
        >>> rows = split_set(np.arange(40_000.0)[:, None], np.arange(40_000) < 10_000, 0)
        >>> len(rows.train), len(rows.test), rows.labels.sum(), np.intersect1d(rows.train, rows.test).size
        (10000, 10000, 4000, 0)
    """
    random = np.random.default_rng(seed)
    normal = random.permutation(np.flatnonzero(y == 0))
    anomalies = random.permutation(np.flatnonzero(y == 1))
    half = len(normal) // 2
    train, rest = normal[:half][:MOST], normal[half:]
    share = min(1.0, MOST / (len(rest) + len(anomalies)))
    count = max(1, round(share * len(anomalies)))
    test = np.concatenate([rest[: round(share * len(rest))], anomalies[:count]])
    return Rows(x[train].astype(np.float64), x[test].astype(np.float64), y[test].astype(np.int64))


def anomaly_scores(method: str, train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """The scores of test rows by a method: the higher, the more anomalous."""
    if method == "sinuflow":
        # No cross-fitting: percentiles do not change the order of scores.
        sinuflow.models.table_fitting._MIN_HELD_OUT_ROWS = 0
        model = sinuflow.fit_table(train, test=False, progress=False, seed=seed, device="cpu")
        return model.anomaly_score(test)
    if method == "ecod":
        from pyod.models.ecod import ECOD

        return np.asarray(ECOD().fit(train).decision_function(test))
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    if method == "iforest":
        from sklearn.ensemble import IsolationForest

        return np.asarray(-IsolationForest(random_state=seed).fit(train).score_samples(test))
    if method == "lof":
        from sklearn.neighbors import LocalOutlierFactor

        return np.asarray(-LocalOutlierFactor(novelty=True).fit(train).score_samples(test))
    from pyod.models.knn import KNN

    kind = "mean" if method == "knn_mean" else "largest"
    return np.asarray(KNN(method=kind).fit(train).decision_function(test))


def measure(path: Path, seed: int, method: str) -> dict[str, Any]:
    """AUROC, AUPR and seconds of one method on one split of a set."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    with np.load(path, allow_pickle=False) as stored:
        rows = split_set(stored["X"], stored["y"], seed)
    start = time.perf_counter()
    try:
        scores = anomaly_scores(method, rows.train, rows.test, seed)
    except sinuflow.SinuflowError as error:
        return {"error": str(error), "train": len(rows.train), "test": len(rows.test), "columns": rows.train.shape[1]}
    seconds = time.perf_counter() - start
    largest = np.finfo(np.float64).max
    scores = np.nan_to_num(scores, nan=largest, posinf=largest, neginf=-largest)
    return {
        "train": len(rows.train),
        "test": len(rows.test),
        "columns": rows.train.shape[1],
        "auroc": 100 * float(roc_auc_score(rows.labels, scores)),
        "aupr": 100 * float(average_precision_score(rows.labels, scores)),
        "seconds": round(seconds, 2),
    }


def mean_of(results: dict[str, dict[str, Any]], name: str, method: str, splits: int, metric: str) -> float:
    """The mean of a metric over the splits of a set; NaN if one of them failed."""
    values = [results[task_name(name, seed, method)].get(metric, np.nan) for seed in range(splits)]
    return float(np.mean(values))


def summarize(results: dict[str, dict[str, Any]], names: list[str], methods: list[str], splits: int) -> dict[str, Any]:
    """Print the metrics of every set and their means, and return them."""
    sets: dict[str, Any] = {}
    print("AUROC / AUPR in percent; seconds of fitting and scoring.\n")
    print("| set (training rows x columns) | " + " | ".join(METHODS[m] for m in methods) + " |")
    print("|---" * (len(methods) + 1) + "|")
    for name in names:
        first = results[task_name(name, 0, methods[0])]
        line = {m: {k: mean_of(results, name, m, splits, k) for k in METRICS} for m in methods}
        sets[name] = {key: first[key] for key in ("train", "test", "columns")} | line
        _print_row(f"{name} ({first['train']:,} x {first['columns']})", line)
    means = {m: {k: float(np.mean([sets[name][m][k] for name in names])) for k in METRICS} for m in methods}
    _print_row("mean", means)
    for name, result in results.items():
        if "error" in result:
            print(f"{name} failed: {result['error']}")
    return {"sets": sets, "means": means}


def _print_row(name: str, line: dict[str, dict[str, float]]) -> None:
    cells = [f"{v['auroc']:.1f} / {v['aupr']:.1f}; {v['seconds']:.1f} s" for v in line.values()]
    print("| " + " | ".join([name, *cells]) + " |")


def main() -> None:
    """Print the table."""
    parser = task_parser(__doc__)
    parser.add_argument("--sets", nargs="*", help="names of files; default: all")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", dest="seeds", type=int, default=3)
    options = parser.parse_args()
    files = {path.stem: path for path in sorted(options.data.glob("*.npz"))}
    names = options.sets or list(files)
    if missing := [name for name in names if name not in files]:
        raise SystemExit(f"{options.data} has no {missing[0]}.npz")
    compare_methods(options, measure, files, names, summarize, "no: other methods, other data")


if __name__ == "__main__":
    main()
