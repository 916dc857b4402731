"""Tasks of a benchmark in several processes, with a cache, so that an interrupted run resumes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from records import make_record, revision, write
from sinuflow.files import write_atomically


def task_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks of tasks, described by a docstring's first line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="a folder for results of tasks, which later runs use")
    parser.add_argument("--json", type=Path)
    return parser


def task_name(name: str, seed: int, method: str) -> str:
    """The name of a task and of its file in the cache."""
    return f"{name}-{seed}-{method}"


@dataclass(frozen=True)
class _Job:
    function: Callable[..., dict[str, Any]]
    name: str
    arguments: tuple[Any, ...]
    path: Path | None

    def __call__(self) -> dict[str, Any]:
        """The result with the revision, from the cache if it is there."""
        if self.path is not None and self.path.exists():
            return dict(json.loads(self.path.read_text()))
        torch.set_num_threads(1)
        result = self.function(*self.arguments) | {"revision": revision(Path(__file__).parent)}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(result).encode())
        return result


def run_tasks(
    function: Callable[..., dict[str, Any]],
    tasks: Mapping[str, tuple[Any, ...]],
    workers: int = 1,
    cache: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """The result of ``function(*arguments)`` for the arguments of every named task, in their order.

    A result is JSON. It is stored as NAME.json in the folder ``cache`` as soon as it is known, and read from there by
    later runs: each result says which revision made it. Each of the ``workers`` processes uses one thread.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     first = run_tasks(dict, {"nothing": ()}, cache=Path(folder))
        ...     again = run_tasks(dict, {"nothing": ({"new": 1},)}, cache=Path(folder))
        >>> list(first["nothing"]), first == again
        (['revision'], True)
    """
    jobs = [_Job(function, name, arguments, cache and cache / f"{name}.json") for name, arguments in tasks.items()]
    results: dict[str, dict[str, Any]] = {}
    if workers > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the new processes, for libraries other than PyTorch
        with get_context("spawn").Pool(workers) as pool:
            for name, result in pool.imap_unordered(_run, jobs, chunksize=1):
                results[name] = result
                _tell(len(results), len(jobs), name)
    else:
        for job in jobs:
            results[job.name] = job()
            _tell(len(results), len(jobs), job.name)
    return {name: results[name] for name in tasks}


def run_benchmark(
    options: argparse.Namespace,
    measure: Callable[..., dict[str, Any]],
    tasks: Mapping[str, tuple[Any, ...]],
    summarize: Callable[[dict[str, dict[str, Any]]], Any],
    comparable: str,
    **entries: Any,
) -> None:
    """Run tasks, print a summary of their results, and write it to a record, by the options of :func:`task_parser`.

    ``comparable`` and further entries are those of :func:`records.make_record`.
    """
    start = time.perf_counter()
    results = run_tasks(measure, tasks, options.workers, options.cache)
    entries["results"] = summarize(results)
    if options.json:
        command = f"python {Path(sys.argv[0]).name} --data DIR"
        revisions = sorted({result["revision"] for result in results.values()})
        write(options.json, make_record(command, start, comparable, revision=revisions, **entries))


def compare_methods(
    options: argparse.Namespace,
    measure: Callable[[Path, int, str], dict[str, Any]],
    files: Mapping[str, Path],
    names: list[str],
    summarize: Callable[[dict[str, dict[str, Any]], list[str], list[str], int], Any],
    comparable: str,
) -> None:
    """Run a task for every seed below ``options.seeds``, file and method of ``options.methods``."""
    keys = product(range(options.seeds), names, options.methods)
    tasks = {task_name(name, seed, method): (files[name], seed, method) for seed, name, method in keys}
    seed = f"0 to {options.seeds - 1}"
    run_benchmark(
        options,
        measure,
        tasks,
        lambda results: summarize(results, names, options.methods, options.seeds),
        comparable,
        seed=seed,
        processes=options.workers,
    )


def _run(job: _Job) -> tuple[str, dict[str, Any]]:
    return job.name, job()


def _tell(done: int, total: int, name: str) -> None:
    if os.isatty(2):
        os.write(2, f"\r\033[K{done}/{total} {name}".encode() + (b"\n" if done == total else b""))
