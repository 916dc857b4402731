"""Tasks of a benchmark in several processes, with a cache, so that an interrupted run resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from records import revision
from sinuflow.files import write_atomically


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


def revisions(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The revisions that made these results."""
    return sorted({result["revision"] for result in results.values()})


def _run(job: _Job) -> tuple[str, dict[str, Any]]:
    return job.name, job()


def _tell(done: int, total: int, name: str) -> None:
    if os.isatty(2):
        os.write(2, f"\r\033[K{done}/{total} {name}".encode() + (b"\n" if done == total else b""))
