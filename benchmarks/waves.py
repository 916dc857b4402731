"""The waves on a CPU: the compiled kernels beside the reference in PyTorch, on one thread.

    python waves.py --json ../docs/results/waves.json

Times are medians of processor time over interleaved rounds in one process. ``--old SRC`` adds the same calls by another
revision, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

import sinuflow
from looks_trained import look_trained

ROWS, SIZES = 512, (6, 63)


@contextmanager
def reference() -> Iterator[None]:
    """The fallback where there is no compiler."""
    from sinuflow.ops import select

    with patch.object(select, "cpp_backend", lambda: select.Backend(False, "selected by the benchmark")):
        yield


def calls(features: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Forward, forward with backward, and inverse of one layer of each kind."""
    torch.manual_seed(0)
    jobs: dict[str, Callable[[], object]] = {}
    for kind in ("shift", "full"):
        flow = look_trained(
            sinuflow.SinusoidalFlow(features, conditioning=kind, hidden=(64, 64), blocks=2)  # type: ignore[arg-type]
        ).to(dtype)
        x = torch.randn(ROWS, features, dtype=dtype)
        flow.initialize(x)

        def forward(flow: torch.nn.Module = flow, x: torch.Tensor = x) -> object:
            with torch.no_grad():
                return flow().log_prob(x)

        def backward(flow: torch.nn.Module = flow, x: torch.Tensor = x) -> object:
            return torch.autograd.grad(flow().log_prob(x).sum(), list(flow.parameters()))

        def inverse(flow: torch.nn.Module = flow) -> object:
            with torch.no_grad():
                return flow().sample((ROWS,))

        jobs |= {f"{kind} log_prob": forward, f"{kind} gradients": backward, f"{kind} sample": inverse}
    return jobs


def medians(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of processor time per call."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(t) for name, t in times.items()}


def measure(rounds: int, compiled_only: bool = False) -> dict[str, dict[str, float]]:
    """Milliseconds of every call, by size and dtype, then by job and implementation."""
    result: dict[str, dict[str, float]] = {}
    for features in SIZES:
        for dtype in (torch.float32, torch.float64):
            jobs = calls(features, dtype)
            everything = {f"{name}, compiled": job for name, job in jobs.items()}
            if not compiled_only:
                everything |= {f"{name}, reference": by_reference(job) for name, job in jobs.items()}
            result[f"D={features}, {str(dtype).removeprefix('torch.')}"] = medians(everything, rounds)
    return result


def by_reference(job: Callable[[], object]) -> Callable[[], object]:
    """The same call by the reference."""

    def run() -> object:
        with reference():
            return job()

    return run


def of_revision(source: Path, rounds: int, kernels: str) -> dict[str, dict[str, float]]:
    """The same calls by another revision, as SINUFLOW_KERNELS selects."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "SINUFLOW_KERNELS": kernels}
    command = [sys.executable, __file__, "--rounds", str(rounds), "--work"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Measure, print ratios, and write them down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--old", type=Path, help="the src folder of another revision")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    if arguments.work:
        print(json.dumps(measure(arguments.rounds, compiled_only=True)))
        return
    milliseconds = measure(arguments.rounds)
    if arguments.old:
        for name, kernels in (("old", ""), ("old, plain PyTorch", "plain")):
            for size, jobs in of_revision(arguments.old, arguments.rounds, kernels).items():
                milliseconds[size] |= {job.replace("compiled", name): t for job, t in jobs.items()}
    ratios: dict[str, dict[str, float]] = {}
    for size, jobs in milliseconds.items():
        for job, t in jobs.items():
            call, how = job.split(", ", 1)
            if how != "compiled":
                ratios.setdefault(f"{size}, {call}", {})[how] = t / jobs[f"{call}, compiled"]
    others = sorted({how for row in ratios.values() for how in row})
    print(f"| time over that of the compiled kernels | {' | '.join(others)} |\n|---|{'---|' * len(others)}")
    for name, row in ratios.items():
        print(f"| {name} | {' | '.join(f'{row[how]:.2f}' for how in others)} |")
    if arguments.json:
        from records import (  # other revisions of Sinuflow, which --work measures, may lack what it needs
            make_record,
            write,
        )

        command = "python benchmarks/waves.py" + (" --old OLD" if arguments.old else "")
        results = {"rows": ROWS, "ratios": ratios, "milliseconds": milliseconds}
        write(arguments.json, make_record(command, start, "no: the paper has no such table", **results))


if __name__ == "__main__":
    main()
