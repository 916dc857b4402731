"""Speed of image flows on a GPU by CUDA graphs, errors against float64, and the speed of plain PyTorch.

    python images.py [FLOW ...] [--FLOW MODEL ...] [--json FILE]

FLOW is mnist or cifar10, of the paper's architecture; mnist-affine or cifar10-affine, with affine conditioning; or
cifar10-best, of the recipe `best`, whose networks are too wide for the CUDA kernels; all by default. MODEL is the state
of such a flow, stored by `sinuflow reproduce images` (weights.safetensors); without one, parameters are random. Times
are in milliseconds, medians of replays, for 128 images; samples with plain PyTorch are timed once. A training step
includes dequantization, gradients and Adam.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import sinuflow
from gpu import COMPARABLE, first_call, median_of, replayed, sampling, scoring, step_time
from records import make_record, write
from sinuflow.bijections.pixels import PixelMap
from sinuflow.conditioners import pixelcnn
from sinuflow.data.image_rows import ImageRows
from sinuflow.ops import pixelcnn_fused
from sinuflow.paper.recipes import recipes

IMAGES = 128
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
ALPHA = {"mnist": 1e-6, "cifar10": 0.05}
#: Named by their dataset, and by their recipe unless it is `today`.
FLOWS = ("mnist", "cifar10", "mnist-affine", "cifar10-affine", "cifar10-best")
#: The standard deviation of random parameters of networks.
STD = {"today": 0.02, "affine": 0.02, "best": 0.01}
#: The limit and the aim, in milliseconds.
TARGETS = {
    ("mnist", "step"): (12, 4),
    ("cifar10", "step"): (15, 6),
    ("cifar10", "log_prob"): (5, 2),
    ("cifar10", "sample"): (300, 100),
}


def parts_of(name: str) -> tuple[str, str]:
    """The dataset and the recipe of a flow."""
    data, _, recipe = name.partition("-")
    return data, recipe or "today"


def make_flow(name: str, weights: Path | None) -> sinuflow.SinusoidalFlow:
    """A trained flow, or one with random parameters."""
    torch.manual_seed(0)
    data, recipe = parts_of(name)
    flow = sinuflow.SinusoidalFlow.image(SHAPES[data], **recipes(data)[recipe].flow)
    if weights is not None:
        flow.load_state_dict(load_file(weights))
    else:
        with torch.no_grad():
            for key, parameter in flow.named_parameters():
                parameter.add_((STD[recipe] if "conditioner" in key else 0.3) * torch.randn_like(parameter))
    return flow.eval()


def measure(name: str, weights: Path | None) -> list[dict[str, Any]]:
    """All results of one flow."""
    flow = make_flow(name, weights).cuda()
    noise = torch.randn(IMAGES, flow.features, device="cuda")
    with torch.no_grad():
        x = flow.bijection.inverse(noise)[0]
        exact = copy.deepcopy(flow).double()
        truth = exact(validate_args=False).log_prob(x.double())
        off = (flow(validate_args=False).log_prob(x).double() - truth).abs() / flow.features / 0.6931472
        inverse = flow.invert(noise, on_failure="return")
        sample_error = (inverse.x.double() - exact.invert(noise.double(), on_failure="return").x).abs()
        round_trip = (flow.bijection(inverse.x)[0] - noise).abs()
    errors = {
        "log_prob_error_bits_per_dimension": float(off.max()),
        "sample_error_max": float(sample_error.max()),
        "round_trip_max": float(round_trip.max()),
        "certified": bool(inverse.converged.all()),
    }
    score, draw = scoring(flow, x, validate_args=False), sampling(flow, IMAGES)
    times = {"log_prob": replayed(score, 20), "sample": replayed(draw, 10)}
    data, recipe = parts_of(name)
    bytes_ = (256 * torch.rand(20_000, *SHAPES[data])).to(torch.uint8)
    rows = ImageRows(bytes_, PixelMap(ALPHA[data]), flips=data == "cifar10").to(torch.device("cuda"))
    times["step"] = step_time(make_flow(name, weights).cuda().train(), IMAGES, rows)
    targets = TARGETS if recipe != "best" else {}
    records = [
        {
            "flow": name,
            "what": what,
            "ms": ms,
            "target": targets.get((data, what)),
            "trained": weights is not None,
        }
        for what, ms in times.items()
    ]
    return [{**record, **errors} for record in records] + plain(name, weights, x)


def plain(name: str, weights: Path | None, x: torch.Tensor) -> list[dict[str, Any]]:
    """Times with networks in plain PyTorch; waves and log-scales stay in Triton."""
    kernels = pixelcnn_fused.forward_kernels, pixelcnn.inverse_kernels
    pixelcnn_fused.forward_kernels = pixelcnn.inverse_kernels = lambda *_: None
    try:
        flow = make_flow(name, weights).cuda()
        score, draw = scoring(flow, x, validate_args=False), sampling(flow, IMAGES)
        first_call(score)
        times = {"log_prob": median_of(score, 3), "sample": 1000 * first_call(draw)}
    finally:
        pixelcnn_fused.forward_kernels, pixelcnn.inverse_kernels = kernels
    return [{"flow": f"{name}, plain PyTorch", "what": what, "ms": ms} for what, ms in times.items()]


def main() -> None:
    """Print the results, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=", ".join(FLOWS))
    for name in FLOWS:
        parser.add_argument(f"--{name}", type=Path, metavar="MODEL", dest=name)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.flows) - set(FLOWS):
        parser.error(f"there is no flow {', '.join(sorted(unknown))}; choose from {', '.join(FLOWS)}")
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    start, records = time.perf_counter(), list[dict[str, Any]]()
    for name in arguments.flows or FLOWS:
        records += measure(name, getattr(arguments, name))
    print("| flow | what | ms | limit, aim | error, bits/dim | sample error | round trip | certified |")
    print("|---|---|---|---|---|---|---|---|")
    for r in records:
        cells = [r["flow"], r["what"], f"{r['ms']:.2f}", r.get("target") or ""]
        if "round_trip_max" in r:
            cells += [f"{r['log_prob_error_bits_per_dimension']:.1e}", f"{r['sample_error_max']:.1e}"]
            cells += [f"{r['round_trip_max']:.1e}", r["certified"]]
        print("| " + " | ".join(map(str, cells)) + " |")
    if arguments.json:
        chosen = "".join(f" {name}" for name in arguments.flows)
        chosen += "".join(f" --{name} MODEL" for name in FLOWS if getattr(arguments, name))
        record = make_record(f"python images.py{chosen}", start, COMPARABLE, "cuda", results=records)
        write(arguments.json, record)


if __name__ == "__main__":
    main()
