"""How many clean rows that a model has not seen are above the anomaly percentile 99: 1 % if the percentile is right.

    python percentiles.py --data DIR [--tables NAME ...] [--splits N] [--steps N] [--most ROWS] [--workers N]
                          [--cache DIR] [--json FILE]

DIR holds tables as NAME.csv.gz. In every split a fifth of the rows is fresh, and Sinuflow is fitted to the others.
With n calibration rows, of which k = floor((n + 1) / 100) may be above the percentile 99, the number of m fresh rows
above it is beta-binomial with the parameters m, k and n + 1 - k; the table shows the 99 % interval of the mean over
the splits, by simulation. Splits share rows, so their mean varies a little more than that. ``--steps`` shortens the
training: the percentiles of a worse model must be as right.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sinuflow
from realism import read
from tasks import run_benchmark, task_parser


def measure(path: Path, seed: int, steps: int | None, most: int) -> dict[str, Any]:
    """The share of fresh rows above 99, and the numbers of calibration and fresh rows."""
    table = read(path)
    order = np.random.default_rng(seed).permutation(len(table))[:most]
    fresh = len(order) // 5
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("train.csv", "fresh.csv")]
        for file, rows in zip(files, (order[fresh:], order[:fresh]), strict=True):
            table.iloc[np.sort(rows)].to_csv(file, index=False)
        model = sinuflow.fit_table(files[0], steps=steps, seed=seed, progress=False, device="cpu")
        percentiles = model.anomaly_percentile(files[1])
    return {
        "above": float(np.mean(percentiles > 99)),
        "above_95": float(np.mean(percentiles > 95)),
        "fresh": fresh,
        "calibration": model.facts["calibration_rows"],
    }


def interval(calibration: int, fresh: int, splits: int) -> tuple[float, float]:
    """The 99 % interval of the mean share above 99 over independent splits."""
    k = (calibration + 1) // 100
    if not k:
        return 0.0, 0.0
    random = np.random.default_rng(0)
    shares = random.binomial(fresh, random.beta(k, calibration + 1 - k, size=(20_000, splits))) / fresh
    low, high = np.quantile(shares.mean(1), [0.005, 0.995])
    return float(low), float(high)


def summarize(results: dict[str, dict[str, Any]], names: list[str], splits: int) -> dict[str, Any]:
    """Print the shares of every table, and return them."""
    print("| table | calibration rows | fresh rows | above 99 | 99 % interval | above 95 |")
    print("|---" * 6 + "|")
    summary = {}
    for name in names:
        runs = [results[f"{name}-{seed}-percentiles"] for seed in range(splits)]
        share, share_95 = (float(np.mean([run[key] for run in runs])) for key in ("above", "above_95"))
        low, high = interval(runs[0]["calibration"], runs[0]["fresh"], splits)
        summary[name] = {**runs[0], "above": share, "above_95": share_95, "interval": [low, high]}
        print(f"| {name} | {runs[0]['calibration']:,} | {runs[0]['fresh']:,} ", end="")
        print(f"| {share:.2%} | {low:.2%} to {high:.2%} | {share_95:.2%} |")
    return summary


def main() -> None:
    """Print the table."""
    parser = task_parser(__doc__)
    parser.add_argument("--tables", nargs="*", help="names of files; default: all .csv.gz")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--most", type=int, default=10_000, help="the most rows of a table")
    options = parser.parse_args()
    files = {path.name.partition(".")[0]: path for path in sorted(options.data.glob("*.csv.gz"))}
    names = options.tables or list(files)
    tasks = {
        f"{name}-{seed}-percentiles": (files[name], seed, options.steps, options.most)
        for name in names
        for seed in range(options.splits)
    }
    table = partial(summarize, names=names, splits=options.splits)
    comparable, seed = "no: the paper has no such tables", f"0 to {options.splits - 1}"
    run_benchmark(options, measure, tasks, table, comparable, seed=seed, steps=options.steps)


if __name__ == "__main__":
    main()
