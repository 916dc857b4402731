"""Time and memory of Sinuflow and zuko on one thread, and how they scale. Run it with `make bench`.

Times are medians over interleaved rounds in one process, so that a slowdown of the machine affects all jobs alike. Only
their ratios are meaningful.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import zuko

import sinuflow
from looks_trained import look_trained
from memory import peak_of
from records import make_record, write

BATCH = 512


def medians(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds per call, with the jobs interleaved."""
    for job in jobs.values():
        job()
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def training_step(flow: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """One step of Adam on the negative log-likelihood; the learning rate is 0, so that the flow does not change."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-flow().log_prob(x).mean()).backward()
        optimizer.step()

    return step


def scoring(flow: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """One call of log_prob without gradients."""

    def score() -> object:
        with torch.no_grad():
            return flow().log_prob(x)

    return score


def sampling(flow: torch.nn.Module) -> Callable[[], object]:
    """One batch of samples."""

    def sample() -> object:
        with torch.no_grad():
            return flow().sample((BATCH,))

    return sample


def side_by_side(features: int, width: int, rounds: int) -> dict[str, float]:
    """All times at one size, in milliseconds."""
    torch.manual_seed(0)
    hidden = (width, width)
    ours = {
        "shift": look_trained(sinuflow.SinusoidalFlow(features, conditioning="shift", hidden=hidden)),
        "full": look_trained(sinuflow.SinusoidalFlow(features, conditioning="full", hidden=hidden)),
    }
    theirs = {
        f"{name}{count}": flow(features, 0, transforms=count, hidden_features=hidden)
        for name, flow in (("maf", zuko.flows.MAF), ("nsf", zuko.flows.NSF))
        for count in (12, 6)
    }
    x = torch.randn(BATCH, features)
    ours["shift"].initialize(x)  # as a trained flow, it maps its data to noise of unit variance
    flows = ours | theirs
    jobs: dict[str, Callable[[], object]] = {}
    for name, flow in flows.items():
        jobs[f"{name} log_prob"] = scoring(flow, x)
        jobs[f"{name} step"] = training_step(flow, x)
    for name, flow in ours.items():
        jobs[f"{name} sample"] = sampling(flow)
    result = medians(jobs, rounds)
    # zuko's samples take seconds, hence fewer rounds.
    result |= medians({f"{name} sample": sampling(flow) for name, flow in theirs.items()}, max(1, rounds // 8))
    for name, flow in ours.items():
        result[f"{name} memory"] = memory_ratio(flow, x)
    return {name: value if name.endswith("memory") else 1e3 * value for name, value in result.items()}


def memory_ratio(flow: sinuflow.SinusoidalFlow, x: torch.Tensor) -> float:
    """Peak memory of rsample and its backward pass over that of log_prob and its backward pass."""

    def draw() -> None:
        flow.zero_grad(set_to_none=True)
        flow().rsample((len(x),)).sum().backward()

    def score() -> None:
        flow.zero_grad(set_to_none=True)
        flow().log_prob(x).sum().backward()

    return peak_of(draw) / peak_of(score)


ROWS = [
    # name, numerator, denominator, target at D = 6, target at D = 63
    ("shift: sample / log_prob", "shift sample", "shift log_prob", 2.0, 2.2),
    ("full: sample / log_prob", "full sample", "full log_prob", 4.0, 5.0),
    ("shift / NSF of 12: log_prob", "shift log_prob", "nsf12 log_prob", 0.7, 0.7),
    ("full / NSF of 6: log_prob", "full log_prob", "nsf6 log_prob", 0.7, 0.7),
    ("shift / NSF of 12: training step", "shift step", "nsf12 step", 0.8, 0.6),
    ("full / NSF of 6: training step", "full step", "nsf6 step", 0.8, 0.9),
    ("shift: memory of rsample / log_prob", "shift memory", None, 2.0, 2.0),
    ("full: memory of rsample / log_prob", "full memory", None, 2.0, 2.0),
    ("zuko MAF of 12: sample / log_prob", "maf12 sample", "maf12 log_prob", None, None),
    ("zuko NSF of 12: sample / log_prob", "nsf12 sample", "nsf12 log_prob", None, None),
    ("zuko NSF of 6: sample / log_prob", "nsf6 sample", "nsf6 log_prob", None, None),
    ("zuko NSF of 12 / shift: sample", "nsf12 sample", "shift sample", None, None),
    ("zuko NSF of 6 / full: sample", "nsf6 sample", "full sample", None, None),
]


def table(small: dict[str, float], large: dict[str, float]) -> list[dict[str, object]]:
    """Print the ratios and their targets."""
    print("\n| ratio (batch 512, one thread) | D = 6, 256-256 | target | D = 63, 512-512 | target |")
    print("|---|---|---|---|---|")
    records = []
    for what, top, bottom, *targets in ROWS:
        values = [side[top] / side[bottom] if bottom else side[top] for side in (small, large)]
        cells = [
            f"{v:.2f}{' **over**' if t is not None and v > t else ''} | {'' if t is None else f'≤ {t}'}"
            for v, t in zip(values, targets, strict=True)
        ]
        print(f"| {what} | {' | '.join(cells)} |")
        records.append({"ratio": what, "D=6": values[0], "D=63": values[1], "targets": targets})
    return records


def growth() -> list[dict[str, object]]:
    """Time by rows, blocks and scales; the last column stays near 1 if it is linear."""
    torch.manual_seed(0)
    records: list[dict[str, object]] = []
    print("\n| growth (shift, D = 6, hidden 64) | time | time per unit, relative |")
    print("|---|---|---|")

    def show(what: str, units: list[int], job: Callable[[int], Callable[[], object]]) -> None:
        seconds = medians({str(n): job(n) for n in units}, 5)
        base = seconds[str(units[0])] / units[0]
        for n in units:
            relative = seconds[str(n)] / n / base
            print(f"| {what} {n:,} | {1e3 * seconds[str(n)]:.1f} ms | {relative:.2f} |")
            records.append({"what": what, "n": n, "ms": 1e3 * seconds[str(n)], "relative": relative})

    def build(blocks: int = 4, scales: int = 4) -> sinuflow.SinusoidalFlow:
        return look_trained(sinuflow.SinusoidalFlow(6, blocks=blocks, scales=scales, hidden=(64, 64)))

    x = torch.randn(4096, 6)
    flow = build()

    def draw(count: int) -> Callable[[], object]:
        return lambda: flow().sample((count,))

    show("log_prob, blocks", [4, 8, 16, 32], lambda n: scoring(build(blocks=n), x))
    show("log_prob, scales", [4, 8, 16, 32], lambda n: scoring(build(scales=n), x))
    show("sample, rows", [4096, 16384, 65536], draw)
    return records


def chunked_rows() -> list[dict[str, object]]:
    """Up to a million rows, scored 4,096 at a time: time per row and peak memory must be constant."""
    torch.manual_seed(0)
    flow = look_trained(sinuflow.SinusoidalFlow(6, blocks=4, hidden=(64, 64)))
    records: list[dict[str, object]] = []
    print("\n| rows scored in chunks of 4,096 | seconds | per row, relative | peak memory beyond the rows |")
    print("|---|---|---|---|")
    base = 0.0
    for rows in (10_000, 100_000, 1_000_000):
        x = torch.randn(rows, 6)

        def score(x: torch.Tensor = x) -> None:
            with torch.no_grad():
                d = flow()
                total = sum(float(d.log_prob(part).sum()) for part in x.split(4096))
            assert total == total

        start = time.perf_counter()
        peak = peak_of(score)
        seconds = time.perf_counter() - start
        base = base or seconds / rows
        print(f"| {rows:,} | {seconds:.2f} | {seconds / rows / base:.2f} | {peak / 2**20:.1f} MiB |")
        records.append({"rows": rows, "seconds": seconds, "relative": seconds / rows / base, "peak_bytes": peak})
    return records


def main() -> None:
    """Measure everything, print it, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, zuko {zuko.__version__}, {platform.machine()}, one thread, batch {BATCH}")
    start = time.perf_counter()
    small = side_by_side(6, 256, arguments.rounds)
    large = side_by_side(63, 512, arguments.rounds)
    ratios = table(small, large)
    results = {"ratios": ratios, "milliseconds": {"D=6": small, "D=63": large}}
    results |= {"growth": growth(), "chunks": chunked_rows()}
    if arguments.json:
        write(arguments.json, make_record("make bench", start, "no: the paper has no such table", **results))


if __name__ == "__main__":
    main()
