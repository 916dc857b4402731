"""Compare the speed of two revisions by interleaved runs; a second copy of the old one gives the noise level.

    git worktree add /tmp/old 0.1.0
    python revisions.py /tmp/old/src --json ../docs/results/revisions.json

Three processes build the same flows: the old revision, a second copy of it, and the new one. In each round all
processes run the same job, in rotating order, so that a slowdown of the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SIZES = {"D=6": (6, 256), "D=63": (63, 512)}


def jobs() -> dict[str, Callable[[], object]]:
    """The timed calls by name, as in core.py, for the revision that is imported."""
    import torch

    import sinuflow
    from core import sampling, scoring, training_step
    from looks_trained import look_trained

    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {}
    for size, (features, width) in SIZES.items():
        x = torch.randn(512, features)
        for kind in ("shift", "full"):
            torch.manual_seed(0)
            flow = look_trained(
                sinuflow.SinusoidalFlow(features, conditioning=kind, hidden=(width, width))  # type: ignore[arg-type]
            )
            flow.initialize(x)
            calls[f"{kind}, {size}: log_prob"] = scoring(flow, x)
            calls[f"{kind}, {size}: sample"] = sampling(flow)
            calls[f"{kind}, {size}: training step"] = training_step(flow, x)
    return calls


def work() -> None:
    """Run the jobs requested on standard input, and print the seconds per call of each."""
    known = jobs()
    for job in known.values():
        job()
        job()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        start = time.perf_counter()
        for _ in range(count):
            known[name]()
        print((time.perf_counter() - start) / count, flush=True)


class Worker:
    """A subprocess that imports one revision."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--work"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.jobs: list[str] = json.loads(self._out.readline())

    def seconds(self, job: str, count: int) -> float:
        """Mean time of one call of a job."""
        print(json.dumps([job, count]), file=self._in, flush=True)
        return float(self._out.readline())


def compare(old: Path, new: Path, repeats: int) -> dict[str, dict[str, float]]:
    """For every job, the median time ratio of new to old, and the median and range of old to old."""
    workers = {"old": Worker(old), "again": Worker(old), "new": Worker(new)}
    names = list(workers)
    result = {}
    print("| job | new / old | old / old, median and range |\n|---|---|---|")
    for job in workers["old"].jobs:
        count = max(1, round(0.2 / workers["old"].seconds(job, 1)))
        times: dict[str, list[float]] = {name: [] for name in names}
        for i in range(repeats):
            for name in names[i % 3 :] + names[: i % 3]:
                times[name].append(workers[name].seconds(job, count))
        ratios = sorted(a / b for a, b in zip(times["new"], times["old"], strict=True))
        own = sorted(a / b for a, b in zip(times["again"], times["old"], strict=True))
        result[job] = {
            "new / old": statistics.median(ratios),
            "old / old": statistics.median(own),
            "old / old, lowest": own[0],
            "old / old, highest": own[-1],
        }
        row = result[job]
        print(
            f"| {job} | {row['new / old']:.3f} | {row['old / old']:.3f} ({own[0]:.3f} to {own[-1]:.3f}) |", flush=True
        )
    return result


def main() -> None:
    """Compare the revision in a folder with the one that this file belongs to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="the src folder of the old revision")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work()
        return
    if arguments.old is None:
        parser.error("name the src folder of the old revision")
    start = time.perf_counter()
    ratios = compare(arguments.old, arguments.new, arguments.repeats)
    if arguments.json:
        from records import make_record, revision, write  # only here, because old revisions may lack what it needs

        command = f"python benchmarks/revisions.py OLD --repeats {arguments.repeats}"
        results = {"old": revision(arguments.old), "revision": revision(arguments.new), "ratios": ratios}
        write(arguments.json, make_record(command, start, "no: the paper has no such table", **results))


if __name__ == "__main__":
    main()
