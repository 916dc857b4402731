"""Compare the speed of two revisions by interleaved runs; a second copy of the old one gives the noise level.

    git worktree add /tmp/old 0.1.0
    python revisions.py /tmp/old/src --json ../docs/results/revisions.json
    python revisions.py /tmp/old/src --device cuda --json ../docs/results/gpu_revisions.json

Three processes build the same flows: the old revision, a second copy of it, and the new one. In each round all
processes run the same job, in rotating order, so that a slowdown of the machine affects all of them alike. On a GPU,
the jobs are those of gpu.py and of images.py, and each revision runs them by its own copies of these files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SIZES = {"D=6": (6, 256), "D=63": (63, 512)}


def cpu_jobs() -> dict[str, Callable[[], object]]:
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


IMAGE_FLOWS = ("mnist", "cifar10", "cifar10-affine", "cifar10-best")
GPU_FLOWS = ("power", "bsds", "full", "full63", *IMAGE_FLOWS)


def gpu_jobs(flows: Sequence[str]) -> dict[str, Callable[[], object]]:
    """The captured calls and training steps of flows of gpu.py and images.py, for the revision that is imported."""
    import torch

    import gpu
    import images
    from cuda_graphs import captured

    calls: dict[str, Callable[[], object]] = {}

    def add(name: str, flow: Any, x: Any, rows: int, source: Any, training: Any) -> None:
        for what, job in (
            ("log_prob", gpu.scoring(flow, x, validate_args=False)),
            ("sample", gpu.sampling(flow, rows)),
        ):
            calls[f"{name}: {what}"] = synchronized(captured(job))
        settings = gpu.Settings(
            steps=10**6, batch_size=rows, learning_rate=1e-9, optimizer="adam", schedule="constant", warmup=0,
            weight_decay=0.0, clip=5.0, ema=None, patience=None, validate_every=10**6, seed=0,
        )  # fmt: skip
        engine = gpu.DeviceEngine(
            training.train(), gpu.Batches(source, rows, 0), settings, gpu.Guard(1e9), lambda _: 1e-9, True
        )
        calls[f"{name}: training steps"] = synchronized(lambda: engine.advance(0, 64))

    for name in flows:
        if name in IMAGE_FLOWS:
            continue
        rows = next(rows for _, flow, rows, _, _, _ in gpu.TARGETS if flow == name)
        flow, x = gpu.make_flow(name, rows)
        source = gpu.MemoryRows(torch.randn(4000 * rows, flow.features, device="cuda"))
        add(name, flow, x, rows, source, gpu.make_flow(name, rows)[0])
    for name in flows:
        if name not in IMAGE_FLOWS:
            continue
        flow, training = (images.make_flow(name, None).cuda() for _ in range(2))
        with torch.no_grad():
            x = flow.bijection.inverse(torch.randn(images.IMAGES, flow.features, device="cuda"))[0]
        data = name.partition("-")[0]
        pixels = (256 * torch.rand(20_000, *images.SHAPES[data])).to(torch.uint8)
        source = images.ImageRows(pixels, images.PixelMap(images.ALPHA[data]), flips=data == "cifar10")
        add(name, flow, x, images.IMAGES, source.to(torch.device("cuda")), training)
    return calls


def synchronized(job: Callable[[], object]) -> Callable[[], object]:
    """A job that ends when the GPU has finished."""
    import torch

    def run() -> None:
        job()
        torch.cuda.synchronize()

    return run


def work(device: str, flows: Sequence[str]) -> None:
    """Run the jobs requested on standard input, and print the seconds per call of each."""
    known = cpu_jobs() if device == "cpu" else gpu_jobs(flows)
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

    def __init__(self, source: Path, device: str, flows: Sequence[str]) -> None:
        source = source.resolve()
        # On a CPU, one definition of the jobs serves both revisions; the GPU's use internals, which change.
        own = [source.parent / "benchmarks"] if device == "cuda" else []
        path = os.pathsep.join(map(str, (source, *own, Path(__file__).resolve().parent)))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-c",
            f"import runpy; runpy.run_path({str(Path(__file__).resolve())!r})['work']({device!r}, {flows!r})",
        ]
        self._process = subprocess.Popen(
            command, env=environment, cwd=source, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def jobs(self) -> list[str]:
        """Wait until all jobs are compiled."""
        return json.loads(self._out.readline())  # type: ignore[no-any-return]

    def seconds(self, job: str, count: int) -> float:
        """Mean time of one call of a job."""
        print(json.dumps([job, count]), file=self._in, flush=True)
        return float(self._out.readline())


def compare(old: Path, new: Path, device: str, flows: Sequence[str], repeats: int) -> dict[str, dict[str, float]]:
    """For every job, the median time ratio of new to old, and the median and range of old to old."""
    workers = {name: Worker(path, device, flows) for name, path in (("old", old), ("again", old), ("new", new))}
    jobs, *_ = [worker.jobs() for worker in workers.values()]
    names = list(workers)
    result = {}
    print("| job | new / old | old / old, median and range |\n|---|---|---|")
    for job in jobs:
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
    parser.add_argument("old", type=Path, help="the src folder of the old revision")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--flows", nargs="+", choices=GPU_FLOWS, default=GPU_FLOWS, help="on a GPU; all by default")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    start = time.perf_counter()
    ratios = compare(arguments.old, arguments.new, arguments.device, list(arguments.flows), arguments.repeats)
    if arguments.json:
        import torch

        from records import make_record, revision, write  # only here, because old revisions may lack what it needs

        torch.set_num_threads(1)  # of the workers, for the record
        flows = f" --flows {' '.join(arguments.flows)}" if arguments.flows != GPU_FLOWS else ""
        command = f"python benchmarks/revisions.py OLD --device {arguments.device}{flows} --repeats {arguments.repeats}"
        results = {"old": revision(arguments.old), "revision": revision(arguments.new), "ratios": ratios}
        write(
            arguments.json, make_record(command, start, "no: the paper has no such table", arguments.device, **results)
        )


if __name__ == "__main__":
    main()
