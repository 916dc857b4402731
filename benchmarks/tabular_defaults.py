"""Held-out log-likelihood of `sinuflow fit` with its defaults, of a Gaussian, and of zuko's MAF and NSF.

All methods have the same maps of the columns and the same measure: atoms, categories and values on a grid count by
their probability (divided by the grid's step), which is the log-mean over the same 32 fixed points of a row's cells.
The Gaussian and zuko's flows see atoms as cells of a continuous axis, a fresh point for every batch. zuko's flows have
zuko's default architectures, and the training loop, settings and processor time of ours, without cross-fitting. Tables
under 2,000 rows are split ten times, and differences are paired.

    python tabular_defaults.py [--data DIR] [--datasets NAME ...] [--workers N] [--json FILE]

DIR holds gas-small, hepmass-small, miniboone-small and power as folders of .npy files; without it only scikit-learn's
datasets are used. Each of N worker processes uses one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sinuflow
import sinuflow.models.table_fitting
from records import make_record, write
from sinuflow import fit_table
from sinuflow.compare import ZukoFlow
from sinuflow.data import Preprocessor
from sinuflow.data.sources import seeded
from sinuflow.models.defaults import table_recipe
from sinuflow.report.baselines import gaussian_log_density
from sinuflow.training import MemoryRows

OWN = ("iris", "wine", "diabetes", "breast_cancer", "digits_top")
PACK = ("gas-small", "hepmass-small", "miniboone-small", "power")
#: Rows of `power`; all two million would take hours.
POWER_ROWS = 50_000
SMALL, SPLITS = 2_000, 10


def load(name: str, folder: Path | None) -> np.ndarray:
    """A dataset as an array; scikit-learn's may also be in the folder, as NAME.npy."""
    if folder is not None and (folder / f"{name}.npy").exists():
        return np.load(folder / f"{name}.npy")
    from sklearn import datasets

    if name == "digits_top":  # the upper half of the images: 32 pixels, counts from 0 to 16
        return datasets.load_digits().data[:, :32]
    if name in OWN:
        return np.asarray(getattr(datasets, f"load_{name}")().data)
    if folder is None:
        raise SystemExit(f"{name} needs --data")
    rows = np.concatenate([np.load(folder / name / f"{part}.npy") for part in ("train", "val", "test")])
    if name == "power":
        rows = rows[np.random.default_rng(0).permutation(len(rows))[:POWER_ROWS]]
    return rows


def train_peer(flow: ZukoFlow, axes: Preprocessor, x: Tensor, val: Tensor, seconds: float, seed: int) -> None:
    """Train for about ``seconds`` of processor time."""
    train, validation = (MemoryRows(axes.prepare(rows), None, axes.encode) for rows in (x, val))
    settings = dict(table_recipe(len(x)).training)
    steps = max(50, int(seconds / _seconds_per_step(flow, train, settings["batch_size"])))
    settings |= {"steps": steps, "patience": None}
    sinuflow.fit(flow, train, validation, **settings, progress=False, device="cpu", seed=seed)  # type: ignore[arg-type]


def _seconds_per_step(flow: ZukoFlow, rows: MemoryRows, batch_size: int) -> float:
    batch = next(rows.epoch(0, batch_size, 0))
    for _ in range(3):
        (-flow().log_prob(batch.x).mean()).backward()
    start = time.process_time()
    for _ in range(10):
        (-flow().log_prob(batch.x).mean()).backward()
    flow.zero_grad()
    return 1.15 * (time.process_time() - start) / 10  # plus the optimizer and validation


def one_split(table: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Held-out log-densities of every method, row by row."""
    sinuflow.models.table_fitting._MIN_HELD_OUT_ROWS = 0  # no cross-fitting: it has no part in the density
    start = time.process_time()
    model = fit_table(table, seed=seed, progress=False, device="cpu")
    seconds = time.process_time() - start
    columns = {
        c.name: torch.from_numpy(np.asarray(table[:, int(c.name[1:])], dtype=np.float64))
        for c in model.preprocessor.columns
    }
    features = torch.stack([columns[c.name] for c in model.preprocessor.features], dim=1)
    parts = (model.split.train, model.split.validation, model.split.test)
    train, val, test = (features[torch.from_numpy(ids)] for ids in parts)
    relations = model.preprocessor.log_relations({n: x.numpy()[model.split.test] for n, x in columns.items()})
    axes = Preprocessor(model.preprocessor.columns, levels="none")
    axes.initialize(train, seeded(seed, 1))
    _, cells = axes.locate(test)

    def scores(log_prob: Callable[[Tensor], Tensor]) -> np.ndarray:
        return axes.score_points(log_prob, cells).numpy() + relations

    points, _ = axes.draw(train, seeded(seed, 1))
    results = {
        "sinuflow": model.score_numbers(test, None).numpy() + relations,
        "Gaussian": scores(lambda y: torch.from_numpy(gaussian_log_density(points.numpy(), y.numpy()))),
        "seconds": np.array([seconds]),
    }
    for name in ("MAF", "NSF"):
        torch.manual_seed(seed)
        flow = ZukoFlow(name, axes.size, transforms=3, hidden=(64, 64))  # zuko's defaults
        try:
            train_peer(flow, axes, train, val, seconds, seed)
            with torch.no_grad():
                results[name] = scores(lambda y, flow=flow: flow().log_prob(y.float()).double())  # type: ignore[misc]
        except (sinuflow.TrainingError, RuntimeError, AssertionError) as error:
            print(f"  {name} failed: {str(error)[:100]}")
            results[name] = np.full(len(test), np.nan)
    return results


def run_task(task: tuple[str, Path | None, int]) -> dict[str, np.ndarray]:
    """One split of one dataset."""
    torch.set_num_threads(1)
    name, folder, seed = task
    return one_split(load(name, folder), seed)


def summarize(name: str, table: np.ndarray, runs: list[dict[str, np.ndarray]]) -> dict[str, object]:
    """One row of the results."""
    line: dict[str, object] = {"set": name, "rows": len(table), "columns": table.shape[1], "splits": len(runs)}
    line["seconds"] = round(float(np.mean([run["seconds"][0] for run in runs])), 1)
    for method in ("sinuflow", "Gaussian", "MAF", "NSF"):
        means = [float(run[method].mean()) for run in runs]
        worst = min(float(run[method].min()) for run in runs)
        entry: dict[str, float] = {"mean": float(np.mean(means)), "worst": worst}
        if method != "sinuflow":
            if len(runs) > 1:
                gains = np.array([float((run["sinuflow"] - run[method]).mean()) for run in runs])
            else:
                gains = runs[0]["sinuflow"] - runs[0][method]
            entry["gain"] = float(gains.mean())
            entry["gain_error"] = float(gains.std(ddof=1) / math.sqrt(len(gains)))
        line[method] = entry
    print(_row(line), flush=True)
    return line


def _row(line: dict[str, object]) -> str:
    ours = line["sinuflow"]
    cells = [f"{line['set']} ({line['rows']:,} x {line['columns']})", f"{line['splits']}", f"{line['seconds']}"]
    cells.append(f"{ours['mean']:.3f} ({ours['worst']:.1f})")  # type: ignore[index]
    for method in ("Gaussian", "MAF", "NSF"):
        entry = line[method]
        cells.append(
            f"{entry['mean']:.3f} ({entry['worst']:.3g}); {entry['gain']:+.3f} ± {entry['gain_error']:.3f}"  # type: ignore[index]
        )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--datasets", nargs="*")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    names = arguments.datasets or [*OWN, *(PACK if arguments.data else ())]
    print("Mean held-out log-density in nats (worst row); after the semicolon, the gain of Sinuflow.\n")
    print("| table (rows x columns) | splits | s | Sinuflow | Gaussian | zuko MAF | zuko NSF |")
    print("|---|---|---|---|---|---|---|")
    tables = {name: load(name, arguments.data) for name in names}
    tasks = [
        (name, arguments.data, seed)
        for name in sorted(names, key=lambda name: -len(tables[name]))  # the longest first
        for seed in range(SPLITS if len(tables[name]) < SMALL else 1)
    ]
    if arguments.workers > 1:
        with get_context("spawn").Pool(arguments.workers) as pool:
            done = pool.map(run_task, tasks, chunksize=1)
    else:
        done = [run_task(task) for task in tasks]
    results = dict(zip(tasks, done, strict=True))
    runs = {name: [run for task, run in results.items() if task[0] == name] for name in names}
    lines = [summarize(name, tables[name], runs[name]) for name in names]
    if arguments.json:
        record = make_record(
            "python tabular_defaults.py --data DIR",
            start,
            "no: other tables, other splits",
            seed="0, and 0 to 9 for tables under 2,000 rows",
            processes=arguments.workers,
            results=lines,
        )
        write(arguments.json, record)


if __name__ == "__main__":
    main()
