"""What encoding costs in training: `fit` on the cells of a table's rows, relative to `fit` on fixed points.

    python encoding.py [--json FILE] [--steps N] [--rows N]

Rows per second, medians of alternating runs, between the first and the last record of a run's history: compilation and
CUDA-graph capture come before the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sinuflow
from records import make_record, write
from sinuflow.data import Preprocessor
from sinuflow.data.inspect import inspect_numbers
from sinuflow.data.sources import MemoryRows, seeded
from sinuflow.models.defaults import table_recipe

COLUMNS, BATCH, REPEATS, RECORDS = 10, 512, 3, 4


def raw_rows(rows: int) -> np.ndarray:
    """Normal, skewed, heavy-tailed and integer columns."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, COLUMNS))
    x[:, 1] += x[:, 0]
    x[:, 2:4] = np.exp(1.5 * x[:, 2:4])
    x[:, 4] = random.standard_t(2, size=rows)
    x[:, 5] = 1 / (1 + np.exp(-3 * x[:, 5]))
    x[:, 6:8] = random.poisson(5, size=(rows, 2))
    return x


def preprocessor_for(x: np.ndarray) -> Preprocessor:
    """As `fit_table` makes it."""
    preprocessor = Preprocessor([inspect_numbers(f"x{i}", x[:, i], "double") for i in range(COLUMNS)])
    preprocessor.initialize(torch.from_numpy(x[:100_000]), seeded(0))
    return preprocessor


def rows_per_second(source: MemoryRows, steps: int) -> float:
    """The rate of `fit` with the defaults for such a table."""
    torch.manual_seed(0)
    flow = sinuflow.SinusoidalFlow(COLUMNS, **table_recipe(source.rows).flow)
    result = sinuflow.fit(flow, source, steps=steps, batch_size=BATCH, validate_every=steps // RECORDS, progress=False)
    first, last = result.history[0], result.history[-1]
    return BATCH * (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])


class Operations(TorchDispatchMode):
    """Counts operations that launch a kernel on a GPU: all but views and allocations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not aliases and "empty" not in func.__name__
        return func(*args, **(kwargs or {}))


def operations(source: MemoryRows, preprocessor: Preprocessor, cells: torch.Tensor) -> dict[str, int]:
    """Operations for a batch of resident rows, for encoding one, and at the start of an epoch."""
    take, rows = source.taker(), torch.arange(BATCH)
    counts = {}
    assert take is not None
    for name, job in (
        ("batch", lambda: take(rows)),
        ("encoding of a batch", lambda: preprocessor.encode(cells[:BATCH], None, seeded(0))),
        ("start of an epoch", lambda: source.start_epoch(0, 0)),
    ):
        with Operations() as counted:
            job()
        counts[name] = counted.count
    return counts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--steps", type=int, default=4000 if torch.cuda.is_available() else 80)
    options = parser.parse_args()
    start = time.perf_counter()
    x = raw_rows(options.rows)
    preprocessor = preprocessor_for(x)
    cells = preprocessor.prepare(torch.from_numpy(x))
    encoded = preprocessor.encode(cells, None, seeded(0)).x
    rates: dict[str, list[float]] = {"encoded": [], "resident": []}
    for _ in range(REPEATS):
        rates["encoded"].append(rows_per_second(MemoryRows(cells, encode=preprocessor.encode), options.steps))
        rates["resident"].append(rows_per_second(MemoryRows(encoded), options.steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    results = {
        "rows": options.rows,
        "columns": COLUMNS,
        "batch_size": BATCH,
        "rows_per_second": medians,
        "runs": rates,
        "ratio": medians["encoded"] / medians["resident"],
        "operations": operations(MemoryRows(cells, encode=preprocessor.encode), preprocessor, cells),
    }
    print(f"{'':28}{'rows/s':>12}")
    for name, rate in medians.items():
        print(f"{name:28}{rate:12,.0f}")
    print(f"{'ratio':28}{results['ratio']:12.3f}")
    for name, count in results["operations"].items():
        print(f"{'operations, ' + name:28}{count:12d}")
    if options.json is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        write(options.json, make_record("python encoding.py", start, "no: the paper has no tables", device, **results))


if __name__ == "__main__":
    main()
