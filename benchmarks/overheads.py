"""What the product adds to the bare mathematics: the training loop, scoring a file, and memory.

python overheads.py [--rows 1000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

import sinuflow
from sinuflow.cli.files import write_rows
from sinuflow.cli.score import scored
from sinuflow.data import open_table
from sinuflow.models.table import TableModel

FEATURES, BATCH, STEPS, ROUNDS = 8, 512, 40, 7


def make_rows(count: int, seed: int = 0) -> np.ndarray:
    """Correlated real numbers and a count."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, FEATURES)) @ np.triu(np.ones((FEATURES, FEATURES)))
    rows[:, 0] = random.poisson(4, count)
    return rows


def loop_overhead() -> float:
    """Time of a step inside `fit` over that of a bare one."""
    torch.manual_seed(0)
    x = torch.randn(50_000, FEATURES)
    ratios = []
    for _ in range(ROUNDS):
        flow = sinuflow.SinusoidalFlow(FEATURES, conditioning="full", hidden=(128, 128))
        bare = _bare_seconds(flow, x[:BATCH])
        history = sinuflow.fit(flow, x, steps=STEPS, batch_size=BATCH, validate_every=STEPS, progress=False).history
        ratios.append(history[-1]["seconds"] / bare)
    return statistics.median(ratios)


def _bare_seconds(flow: sinuflow.SinusoidalFlow, x: torch.Tensor) -> float:
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-9, fused=True)

    def step() -> None:
        (-flow(validate_args=False).log_prob(x).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - start


def scoring_rate(folder: Path, model: TableModel, rows: int) -> float:
    """Rows per second of scoring a Parquet file, over those of bare log_prob."""
    path = write_parquet(folder, rows)
    y = torch.randn(4096, FEATURES)
    ratios = []
    for _ in range(3):
        start = time.perf_counter()
        with torch.no_grad():
            for _ in range(rows // 4096):
                model.flow(validate_args=False).log_prob(y)
        bare = (time.perf_counter() - start) / (rows // 4096 * 4096)
        start = time.perf_counter()
        write_rows(folder / "scored.parquet", scored(model, open_table(path), allow_missing=False))
        ratios.append(bare / ((time.perf_counter() - start) / rows))
    return statistics.median(ratios)


def write_parquet(folder: Path, rows: int) -> Path:
    """A file of so many rows, written in pieces."""
    path = folder / f"{rows}.parquet"
    writer = None
    for seed, start in enumerate(range(0, rows, 500_000)):
        part = make_rows(min(500_000, rows - start), seed)
        table = pa.table({f"x{i}": part[:, i] for i in range(FEATURES)})
        writer = writer or pa.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()
    return path


def peak_mebibytes(folder: Path, model: Path, rows: int) -> float:
    """The most memory of `sinuflow score` on a file, as the system counts it."""
    path = write_parquet(folder, rows)
    output = folder / "scored.parquet"
    code = "import resource, sys; from sinuflow.cli.main import run\ntry: run()\nexcept SystemExit: pass\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    command = [sys.executable, "-c", code, "score", str(model), str(path), "-o", str(output), "--force"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    path.unlink()
    return int(result.stdout.splitlines()[-1]) / 1024


def main() -> None:
    """Print the figures, beside what they should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the largest file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results["loop"] = loop_overhead()
        print(f"a step in fit / a bare step: {results['loop']:.3f} (at most 1.1)", flush=True)
        large = sinuflow.fit_table(make_rows(20_000), steps=5, progress=False)
        results["score"] = scoring_rate(folder, large, 300_000)
        print(f"rows/s of scoring Parquet / of bare log_prob: {results['score']:.3f} (at least 0.7)", flush=True)
        tiny = sinuflow.fit_table(
            make_rows(20_000), steps=5, progress=False, architecture={"blocks": 1, "hidden": (16,)}
        )
        tiny.save(folder / "tiny.safetensors")
        for rows in (arguments.rows // 100, arguments.rows // 10, arguments.rows):
            start = time.perf_counter()
            peak = peak_mebibytes(folder, folder / "tiny.safetensors", rows)
            results[f"peak_mib_{rows}"] = peak
            seconds = time.perf_counter() - start
            print(f"peak memory of scoring {rows:,} rows: {peak:.0f} MiB ({seconds:.0f} s)", flush=True)
    if arguments.json:
        record = {
            "command": "python overheads.py",
            "seed": 0,
            "hardware": f"{platform.machine()}, 1 thread",
            "versions": {"sinuflow": sinuflow.__version__, "torch": torch.__version__},
            "comparable_with_paper": "no",
            "results": results,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
