"""How well classifiers tell sampled rows of real tables from real ones.

    python realism.py --data DIR [--tables NAME ...] [--methods NAME ...] [--seeds N] [--workers N]
                      [--cache DIR] [--json FILE]

DIR holds tables as NAME.csv.gz, and features as NAME.npz (the array X). A fifth of the rows of a table is held out;
each method is fitted to the others, and samples as many. All methods get the columns that Sinuflow models, so
identifiers and free text do not count. Question marks count as missing. Two figures:

- C2ST: the AUC of a random forest (300 trees, five folds) that tells held-out from sampled rows, at most 5,000 of
  each; 0.5 is the best.
- detection: 2 (1 - AUC), at most 1, of XGBoost in SDMetrics' protocol (three folds), with all training rows as the
  real ones, as published tables of tabular generators have it; 1 is the best. The same with held-out rows is the
  honest figure for a method that can copy rows.

Methods: Sinuflow by its defaults; SDV's GaussianCopula (`pip install sdv`); and a sequential CART synthesizer, which
fits a tree for each column given those before it, and draws the column's value from the training rows in the same
leaf. Also counted for Sinuflow: values with a share of 1 % or more whose share among the samples is off by more than
1.5 points and three standard errors, and samples outside of the range of a column in [0, 100] or [0, ∞).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sinuflow
from tasks import compare_methods, task_name, task_parser

#: Columns that are no features: which rows are for training.
NOT_FEATURES = {"adult": ["split"]}
#: The most rows of each kind for the random forest.
MOST = 5_000
METHODS = {"sinuflow": "Sinuflow", "copula": "GaussianCopula", "cart": "CART"}
_MISSING = ("", "?", "NA", "NaN", "nan", "null", "None", "<NA>", "N/A")


def read(path: Path) -> pd.DataFrame:
    """A table with its cells as texts."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            return pd.DataFrame(stored["X"]).rename(columns=lambda i: f"x{i}").astype(str)
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    name = path.name.partition(".")[0]
    return table.drop(columns=NOT_FEATURES.get(name, []))


def split_table(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and held-out rows."""
    order = np.random.default_rng(0).permutation(len(table))
    held = len(table) // 5
    return table.iloc[np.sort(order[held:])], table.iloc[np.sort(order[:held])]


class Numbers:
    """Cells as numbers for trees: missing is -1 of a flag, texts are codes by frequency in the training rows."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.codes: dict[str, dict[str, int] | None] = {}
        for name in table:
            cells = table[name]
            known = cells[~cells.isin(_MISSING)]
            numeric = pd.to_numeric(known, errors="coerce").notna().all()
            self.codes[str(name)] = None if numeric else {v: i for i, v in enumerate(known.value_counts().index)}

    def __call__(self, table: pd.DataFrame) -> np.ndarray:
        columns = []
        for name, codes in self.codes.items():
            cells = table[name]
            missing = cells.isin(_MISSING).to_numpy()
            values = pd.to_numeric(cells, errors="coerce") if codes is None else cells.map(codes)
            columns.append(np.where(missing, np.nan, values.to_numpy(dtype=np.float64, na_value=-1.0)))
        return np.stack(columns, axis=1)


def with_flags(numbers: np.ndarray) -> np.ndarray:
    """Numbers, with missing ones replaced by an unusual value."""
    return np.nan_to_num(numbers, nan=-987_654_321.0)


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of a method as texts, missing ones empty, as it would be written to CSV."""
    return pd.read_csv(_csv(frame), dtype=str, keep_default_na=False)


def _csv(frame: pd.DataFrame) -> Any:
    import io

    return io.StringIO(frame.to_csv(index=False))


def cart(table: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Rows by sequential trees, whose leaves hold five training rows or more."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    random = np.random.default_rng(seed)
    numbers = Numbers(table)
    x = with_flags(numbers(table))
    chosen = random.integers(len(table), size=rows)
    sampled, donors = x[chosen, :1], [chosen]
    for i, codes in enumerate(list(numbers.codes.values())[1:], start=1):
        kind = DecisionTreeRegressor if codes is None else DecisionTreeClassifier
        tree = kind(min_samples_leaf=5, random_state=seed).fit(x[:, :i], x[:, i])
        leaves = tree.apply(x[:, :i])
        order = np.argsort(leaves, kind="stable")
        ids, first, count = np.unique(leaves[order], return_index=True, return_counts=True)
        place = np.searchsorted(ids, tree.apply(sampled))
        chosen = order[first[place] + (random.random(rows) * count[place]).astype(int)]
        sampled = np.column_stack([sampled, x[chosen, i]])
        donors.append(chosen)
    columns = {name: table[name].to_numpy()[rows_] for name, rows_ in zip(table, donors, strict=True)}
    return pd.DataFrame(columns)


def copula(table: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Rows by SDV's GaussianCopula with its defaults."""
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    typed = pd.DataFrame(
        {
            name: table[name].mask(table[name].isin(_MISSING)).astype(float)
            if codes is None
            else table[name].mask(table[name].isin(_MISSING))
            for name, codes in Numbers(table).codes.items()
        }
    )
    metadata = Metadata.detect_from_dataframe(typed)
    for name, codes in Numbers(table).codes.items():
        metadata.update_column(column_name=name, sdtype="numerical" if codes is None else "categorical")
    metadata.remove_primary_key()
    synthesizer = GaussianCopulaSynthesizer(metadata, enforce_rounding=True)
    np.random.seed(seed)
    synthesizer.fit(typed)
    return texts(synthesizer.sample(rows))


def modelled(table: pd.DataFrame) -> list[str]:
    """The columns that Sinuflow models, and does not set aside."""
    from sinuflow.data import open_table, survey

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.to_csv(path, index=False)
        aside = survey(open_table(path), [], []).set_aside
    return [name for name in table if name not in aside]


def auc_forest(real: np.ndarray, sampled: np.ndarray) -> float:
    """The AUC of a random forest in five folds."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    random = np.random.default_rng(0)
    count = min(len(real), len(sampled), MOST)
    x = np.concatenate([random.permutation(part)[:count] for part in (real, sampled)])
    y = np.arange(2 * count) < count
    forest = RandomForestClassifier(300, random_state=0)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return float(cross_val_score(forest, with_flags(x), y, cv=folds, scoring="roc_auc").mean())


def detection(real: np.ndarray, sampled: np.ndarray) -> float:
    """2 (1 - AUC) of XGBoost as in SDMetrics: three folds, and an AUC of at least 0.5."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold
    from xgboost import XGBClassifier

    x, y = np.concatenate([real, sampled]), np.arange(len(real) + len(sampled)) < len(real)
    scores = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(x, y):
        model = XGBClassifier(enable_categorical=False, nthread=1, random_state=0).fit(x[train], y[train])
        scores.append(max(0.5, roc_auc_score(y[test], model.predict_proba(x[test])[:, 1])))
    return float(2 * (1 - np.mean(scores)))


def atoms(real: pd.DataFrame, sampled: pd.DataFrame) -> dict[str, Any]:
    """The largest error of the share of a value of 1 % or more, in points, and those that are off."""
    wrong, largest, count = [], 0.0, 0
    for name in real:
        shares, drawn = real[name].value_counts(normalize=True), sampled[name].value_counts(normalize=True)
        for value, share in shares[shares >= 0.01].items():
            error = abs(drawn.get(value, 0.0) - share)
            limit = max(0.015, 3 * np.sqrt(share * (1 - share) * (1 / len(real) + 1 / len(sampled))))
            largest, count = max(largest, error), count + 1
            if error > limit:
                wrong.append(f"{name}={value}: {share:.3f} {drawn.get(value, 0.0):.3f}")
    return {"atoms": count, "atoms_off": wrong, "largest_error": 100 * largest}


def outside(real: np.ndarray, sampled: np.ndarray) -> int:
    """Samples below the least value of a column of numbers from 0, or above 100 if all are below."""
    low, high = np.nanmin(real, axis=0), np.nanmax(real, axis=0)
    wrong = (sampled < low) & (low >= 0)
    wrong |= (sampled > high) & (low >= 0) & np.isin(high, (1.0, 100.0))
    return int(wrong.sum())


def measure(path: Path, seed: int, method: str) -> dict[str, Any]:
    """The figures of one method on one table."""
    warnings.simplefilter("ignore")
    table = read(path)
    table = table[modelled(table)]
    train, held = split_table(table)
    start, facts = time.perf_counter(), {}
    if method == "sinuflow":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "train.csv"
            train.to_csv(file, index=False)
            model = sinuflow.fit_table(file, progress=False, seed=seed, device="cpu", test=False)
        facts = {"steps": model.facts["steps"], "best_step": model.facts["best_step"]}
        sampled = texts(model.sample(len(train), seed=seed).to_pandas())
    else:
        sampled = texts((copula if method == "copula" else cart)(train, len(train), seed))
    seconds = time.perf_counter() - start
    numbers = Numbers(table)
    real, other, drawn = numbers(train), numbers(held), numbers(sampled[list(train)])
    return {
        "rows": len(train),
        "columns": train.shape[1],
        "c2st": auc_forest(other, drawn),
        "detection": detection(real, drawn),
        "detection_held_out": detection(other, drawn[: len(other)]),
        **atoms(train, _comparable(train, sampled[list(train)], numbers)),
        "outside": outside(numbers(table), drawn),
        "seconds": round(seconds, 1),
        **facts,
    }


def _comparable(real: pd.DataFrame, sampled: pd.DataFrame, numbers: Numbers) -> pd.DataFrame:
    """Sampled numbers in the spelling of the equal real ones."""
    spelled = sampled.copy()
    for name, codes in numbers.codes.items():
        if codes is None:
            spelling = {float(v): v for v in real[name].unique() if v not in _MISSING}
            known = pd.to_numeric(sampled[name], errors="coerce").map(spelling)
            spelled[name] = known.where(known.notna(), sampled[name])
        if (missing := real[name][real[name].isin(_MISSING)]).size:
            spelled[name] = spelled[name].mask(sampled[name] == "", missing.iloc[0])
    return spelled


def summarize(results: dict[str, dict[str, Any]], names: list[str], methods: list[str], seeds: int) -> dict[str, Any]:
    """Print the figures of every table and their means, and return them."""
    print("C2ST of a random forest (0.5 is best) / detection with training and held-out rows (1 is best); seconds\n")
    print("| table (training rows x columns) | " + " | ".join(METHODS[m] for m in methods) + " | atoms off |")
    print("|---" * (len(methods) + 2) + "|")
    tables: dict[str, Any] = {}
    for name in names:
        runs = {m: [results[task_name(name, seed, m)] for seed in range(seeds)] for m in methods}
        keys = ("c2st", "detection", "detection_held_out", "seconds")
        line = {m: {k: float(np.mean([r[k] for r in rs])) for k in keys} for m, rs in runs.items()}
        off = [w for r in runs.get("sinuflow", []) for w in r["atoms_off"]]
        first = runs[methods[0]][0]
        tables[name] = {"rows": first["rows"], "columns": first["columns"], **line, "atoms_off": off}
        cells = [
            f"{v['c2st']:.3f} / {v['detection']:.3f}, {v['detection_held_out']:.3f}; {v['seconds']:.0f} s"
            for v in line.values()
        ]
        outside_ = sum(r["outside"] for r in runs.get("sinuflow", []))
        print(f"| {name} ({first['rows']:,} x {first['columns']}) | " + " | ".join(cells), end="")
        print(f" | {len(off)} of {sum(r['atoms'] for r in runs.get('sinuflow', []))}, {outside_} outside |")
    means = {m: float(np.mean([tables[name][m]["c2st"] for name in names])) for m in methods}
    print("mean C2ST: " + ", ".join(f"{METHODS[m]} {value:.3f}" for m, value in means.items()))
    return {"tables": tables, "mean_c2st": means}


def main() -> None:
    """Print the table."""
    parser = task_parser(__doc__)
    parser.add_argument("--tables", nargs="*", help="names of files; default: all .csv.gz of 400 rows or more")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    files = {p.name.partition(".")[0]: p for p in [*options.data.glob("*.csv.gz"), *options.data.glob("*.npz")]}
    names = options.tables or sorted(n for n, p in files.items() if p.suffix == ".gz" and len(read(p)) >= 400)
    compare_methods(options, measure, files, names, summarize, "no: the paper has no such tables")


if __name__ == "__main__":
    main()
