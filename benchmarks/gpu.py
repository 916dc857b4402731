"""Speed on a GPU by CUDA graphs, errors against float64, lower bounds, and zuko in the same run.

    python gpu.py [--json FILE] [--quick]

Times are in milliseconds, medians of replays. A training step includes the batch, gradients, clipping and Adam.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sinuflow
from cuda_graphs import captured
from looks_trained import look_trained
from records import make_record, write
from sinuflow.bijections.base import CERTIFIED
from sinuflow.data.sources import Batches, MemoryRows, RowSource
from sinuflow.training.device_engine import DeviceEngine
from sinuflow.training.guard import Guard
from sinuflow.training.settings import Settings

#: Whether times may stand beside the paper's.
COMPARABLE = "no: other hardware, and the paper times other things"
#: Operations per second of an H200's tensor cores, with three TF32 products for each float32 product.
TF32_THREE = 130e12

POWER = {"features": 6, "hidden": (256, 256)}
BSDS = {"features": 63, "hidden": (512, 512)}
FULL = {"conditioning": "full", "hidden": (512, 512), "residual": True}

#: Name, flow, rows, kind, limit and aim in milliseconds.
TARGETS = [
    ("POWER training step", "power", 512, "step", 0.9, 0.35),
    ("POWER log_prob", "power", 512, "log_prob", 0.3, 0.10),
    ("POWER sample, certified", "power", 512, "sample", 0.6, 0.15),
    ("BSDS training step", "bsds", 512, "step", 2.0, 1.0),
    ("BSDS log_prob", "bsds", 512, "log_prob", 1.0, 0.35),
    ("BSDS sample, certified", "bsds", 512, "sample", 3.0, 0.8),
    ("full, POWER training step", "full", 4096, "step", 1.5, 0.8),
    ("full, POWER log_prob", "full", 4096, "log_prob", 0.7, 0.35),
    ("full, POWER sample", "full", 4096, "sample", None, None),
    ("full, D 63 sample", "full63", 512, "sample", None, None),
]
FLOWS: dict[str, dict[str, Any]] = {
    "power": POWER,
    "bsds": BSDS,
    "full": {**FULL, "features": 6},
    "full63": {**FULL, "features": 63},
}


def replayed(job: Callable[[], object], replays: int = 50) -> float:
    """Milliseconds of a job, captured as a CUDA graph."""
    return median_of(captured(job), replays)


def median_of(job: Callable[[], object], repeats: int) -> float:
    """Milliseconds of a job, by events on the device."""
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        job()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def first_call(job: Callable[[], object]) -> float:
    """Seconds of the first call, compilation included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    job()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def make_flow(
    name: str, rows: int, device: str = "cuda", **changes: Any
) -> tuple[sinuflow.SinusoidalFlow, torch.Tensor]:
    """A flow with parameters like a trained one's, and rows."""
    options = {**FLOWS[name], **changes}
    torch.manual_seed(0)
    flow = look_trained(sinuflow.SinusoidalFlow(**options))
    x = torch.randn(rows, options["features"])
    flow.initialize(x)
    return flow.to(device), x.to(device)


def scoring(flow: Any, x: torch.Tensor, **options: Any) -> Callable[[], object]:
    """log_prob without gradients."""

    def score() -> object:
        with torch.no_grad():
            return flow(**options).log_prob(x)

    return score


def sampling(flow: sinuflow.SinusoidalFlow, rows: int) -> Callable[[], torch.Tensor]:
    """Sample and certify; returns on the device whether all samples converged."""
    parameter = next(flow.parameters())

    def sample() -> torch.Tensor:
        with torch.no_grad():
            noise = torch.randn(flow.features, rows, device=parameter.device, dtype=parameter.dtype)
            return flow.bijection.certified(noise, None, CERTIFIED).converged.all()

    return sample


def step_time(flow: sinuflow.SinusoidalFlow, rows: int, source: RowSource | None = None) -> float:
    """Milliseconds of a step in the training loop, as a mean over hundreds of captured steps."""
    settings = Settings(
        steps=10**6, batch_size=rows, learning_rate=1e-9, optimizer="adam", schedule="constant", warmup=0,
        weight_decay=0.0, clip=5.0, ema=None, patience=None, validate_every=10**6, seed=0,
    )  # fmt: skip
    if source is None:  # an epoch that lasts longer than the measurement
        source = MemoryRows(torch.randn(4000 * rows, flow.features, device="cuda"))
    batches = Batches(source, rows, 0)
    engine = DeviceEngine(flow, batches, settings, Guard(1e9), lambda _: 1e-9, capture=True)
    made = [engine.advance(0, 256).steps for _ in range(12)]  # the first call captures the step
    # A call in which an epoch ends makes fewer steps.
    times = [median_of(lambda: made.append(engine.advance(0, 256).steps), 1) / made[-1] for _ in range(9)]
    return statistics.median(times)


def targets(quick: bool) -> list[dict[str, Any]]:
    """Times of all flows, with limits and lower bounds."""
    records: list[dict[str, Any]] = []
    for name, options in FLOWS.items():
        wanted = {kind for _, flow, _, kind, _, _ in TARGETS if flow == name}
        rows = next(rows for _, flow, rows, _, _, _ in TARGETS if flow == name)
        flow, x = make_flow(name, rows)
        score, draw = scoring(flow, x, validate_args=False), sampling(flow, rows)
        compile_seconds = {"log_prob": first_call(score), "sample": first_call(draw)}
        assert bool(draw()), "an inverse was not certified"
        error = errors(flow, x)
        times: dict[str, float] = {"log_prob": replayed(score)}
        if "sample" in wanted:
            times["sample"] = replayed(draw)
        if "step" in wanted:
            times["step"] = step_time(make_flow(name, rows)[0], rows)
        floor = floors(options, rows)
        for kind, value in times.items():
            reach, aim = next(((r, a) for _, f, _, k, r, a in TARGETS if (f, k) == (name, kind)), (None, None))
            records.append({
                "flow": name, "rows": rows, "what": kind, "ms": value, "must_reach": reach, "aim": aim,
                "floor_ms": floor[kind], "first_call_s": compile_seconds.get(kind), **error,
            })  # fmt: skip
        if "sample" in times:
            records.append({
                "flow": name, "rows": rows, "what": "sample / log_prob", "ratio": times["sample"] / times["log_prob"],
            })  # fmt: skip
        print_records(records[-len(times) - 1 :])
        if quick:
            break
    return records


def errors(flow: sinuflow.SinusoidalFlow, x: torch.Tensor) -> dict[str, float]:
    """Errors of log_prob and of a round trip, against layers in float64."""
    exact = sinuflow.SinusoidalFlow(**flow.config).to(x.device, torch.float64)
    exact.load_state_dict(flow.state_dict())
    with torch.no_grad():
        off = (flow().log_prob(x).double() - exact().log_prob(x.double())).abs()
        z, _ = exact.bijection(x.double())
        back, _ = flow.bijection.inverse(z.float())
    trip = (back.double() - x.double()).abs()
    return {
        "error_max": float(off.max()),
        "error_mean": float(off.mean()),
        "round_trip_max": float(trip.max()),
        "round_trip_mean": float(trip.mean()),
    }


def floors(options: dict[str, Any], rows: int) -> dict[str, float]:
    """Lower bounds in milliseconds: three TF32 products for each float32 product, without masked weights."""
    flow = sinuflow.SinusoidalFlow(**options)
    used = sum(float(module.mask.sum()) for module in flow.modules() if hasattr(module, "mask"))
    pass_ms = 1e3 * 2 * used * rows / TF32_THREE
    return {"log_prob": pass_ms, "sample": pass_ms, "step": 3 * pass_ms}


def print_records(records: list[dict[str, Any]]) -> None:
    """Print one line per record."""
    for record in records:
        if "ratio" in record:
            print(f"| {record['flow']} | {record['rows']:,} | {record['what']} | {record['ratio']:.2f} | | | | |")
            continue
        values = [record[key] for key in ("must_reach", "aim", "floor_ms")]
        shown = [f"{value:.3g}" if value is not None else "" for value in values]
        print(
            f"| {record['flow']} | {record['rows']:,} | {record['what']} | {record['ms']:.3f} | {' | '.join(shown)} | "
            f"{record['error_max']:.1e} / {record['error_mean']:.1e} |",
            flush=True,
        )


def beside_zuko() -> list[dict[str, Any]]:
    """zuko's NSF of six transforms with the same hidden layers, in the same run, one call at a time."""
    try:
        import zuko
    except ImportError:
        print("zuko is not installed: no comparison")
        return []
    records = []
    for features, rows in ((6, 4096), (63, 512)):
        flow = zuko.flows.NSF(features, 0, transforms=6, hidden_features=(512, 512)).cuda()
        x = torch.randn(rows, features, device="cuda")
        optimizer = torch.optim.Adam(flow.parameters(), lr=0.0, fused=True)

        def step(flow: Any = flow, x: torch.Tensor = x, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            (-flow().log_prob(x).mean()).backward()
            optimizer.step()

        def draw(flow: Any = flow, rows: int = rows) -> None:
            with torch.no_grad():
                flow().sample((rows,))

        for what, job, repeats in (("log_prob", scoring(flow, x), 10), ("step", step, 10), ("sample", draw, 3)):
            job()
            records.append(
                {"flow": "zuko NSF", "features": features, "rows": rows, "what": what, "ms": median_of(job, repeats)}
            )
            print(f"| zuko NSF, D {features} | {rows:,} | {what} | {records[-1]['ms']:.2f} |", flush=True)
    return records


def growth() -> list[dict[str, Any]]:
    """Time of log_prob by rows, features and blocks."""
    records: list[dict[str, Any]] = []
    plain = {"validate_args": False}
    for rows in (512, 4096, 32768, 262144, 1_000_000):
        for name in ("power", "full"):
            flow, x = make_flow(name, 4096)
            many = x.repeat(-(-rows // 4096), 1)[:rows]
            ms = median_of(scoring(flow, many, **plain), 5)
            records.append({"flow": name, "by": "rows", "value": rows, "ms": ms})
    for by, values in (("features", (2, 6, 16, 32, 63)), ("blocks", (2, 4, 8, 12, 16))):
        for value in values:
            flow, x = make_flow("power", 512, **{by: value})
            records.append({"flow": "power", "by": by, "value": value, "ms": replayed(scoring(flow, x, **plain))})
    for record in records:
        print(f"| {record['flow']} | {record['by']} | {record['value']:,} | {record['ms']:.3f} ms |", flush=True)
    return records


def memory() -> list[dict[str, Any]]:
    """Peak memory of a training step, relative to the activations of the backward pass."""
    records = []
    for name in ("power", "full"):
        rows = 4096
        flow, x = make_flow(name, rows)
        scored = flow(validate_args=False)
        for _ in range(2):  # after the first pass, all persistent buffers are allocated
            torch.cuda.synchronize()
            base = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            loss = -scored.log_prob(x).mean()
            loss.backward()
            peak = torch.cuda.max_memory_allocated() - base
        units = sum(len(layer.reach) for net in networks(flow) for layer in net.conditioner.plan.layers)
        activations = 4 * rows * (units + len(networks(flow)) * 2 * flow.features)
        records.append({"flow": name, "rows": rows, "what": "memory", "ratio": peak / activations})
        print(
            f"| {name} | {rows:,} | memory of a step / activations | {peak / activations:.2f} | at most 2 |", flush=True
        )
    return records


def networks(flow: sinuflow.SinusoidalFlow) -> list[Any]:
    """The autoregressive layers."""
    return [module for module in flow.modules() if hasattr(module, "conditioner")]


def main() -> None:
    """Print the results, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the first flow only")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    start = time.perf_counter()
    print("| flow | rows | what | ms | limit | aim | lower bound | log_prob error max / mean |")
    print("|---|---|---|---|---|---|---|---|")
    results = {"targets": targets(arguments.quick)}
    if not arguments.quick:
        results |= {"zuko": beside_zuko(), "growth": growth(), "memory": memory()}
    if arguments.json:
        write(arguments.json, make_record("python gpu.py", start, COMPARABLE, "cuda", results=results))


if __name__ == "__main__":
    main()
