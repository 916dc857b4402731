"""Short runs on MNIST: bits per dimension of validation images, and how exactly they come back from noise in float32.

    python benchmarks/stability_pilots.py DATA '{"stability": 100}' '{"flow": {"scales": 8}}' ... [--json FILE]

DATA is the folder that has the set. Each argument is a run: settings of `sinuflow.fit` instead of the recipe's `today`
with 4,000 steps; `flow` changes the architecture, and `rho` and `delta` the constants of `sinuflow.training.stability`.
Errors are quantiles over the images of the largest error in each: 50, 99 and 99.9 percent, and the largest.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import sinuflow
from round_trip import there_and_back
from sinuflow.bijections.pixels import PixelMap
from sinuflow.data.image_sets import image_set, load_image_set
from sinuflow.paper.recipes import recipes
from sinuflow.paper.record import hardware, versions
from sinuflow.training import ImageRows, stability

_STEPS = 4_000
_SHARES = (0.5, 0.99, 0.999, 1.0)


def round_trip(flow: sinuflow.SinusoidalFlow, pixels: PixelMap, x: torch.Tensor) -> dict[str, Any]:
    """Errors in logits and of pixels between 0 and 1, and how many images are certified."""
    found = there_and_back(flow, pixels, x)
    return {
        "errors_in_logits": _quantiles(found.errors.logits),
        "errors_of_pixels": _quantiles(found.errors.pixels),
        "images_off_by_more_than_1e-4": int((found.errors.logits > 1e-4).sum()),
        "images_with_pixels_off_by_more_than_1e-4": int((found.errors.pixels > 1e-4).sum()),
        "certified": int(found.certified.sum()),
        "images": len(x),
    }


def _quantiles(each: torch.Tensor) -> list[float]:
    ordered = each.sort().values
    chosen = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in _SHARES)
    return [float(f"{value:.3g}") for value in chosen]


def pilot(changes: dict[str, Any], data: Path, device: str) -> dict[str, Any]:
    """One run."""
    told, about = dict(changes), image_set("mnist")
    recipe, pixels = recipes("mnist")["today"], PixelMap(about.alpha)
    usual = stability._QUOTIENT, stability._ERROR
    stability._QUOTIENT, stability._ERROR = told.pop("rho", usual[0]), told.pop("delta", usual[1])
    architecture = recipe.flow | told.pop("flow", {})
    settings = recipe.training | {"steps": _STEPS} | told
    settings["validate_every"] = settings["steps"] // 2
    images = load_image_set("mnist", data)
    train, held_out = (ImageRows(torch.from_numpy(part), pixels) for part in (images.train, images.val))
    torch.manual_seed(0)
    flow = sinuflow.SinusoidalFlow.image(about.shape, **architecture)
    start = time.perf_counter()
    result = sinuflow.fit(flow, train, held_out, **settings, device=device, progress=False)
    seconds = time.perf_counter() - start
    stability._QUOTIENT, stability._ERROR = usual
    x = torch.cat([batch.x for batch in held_out.in_order(1000)]).to(device)
    return {
        "what": changes,
        "steps": settings["steps"],
        "seconds": round(seconds, 1),
        "validation_bits_per_dimension": round(held_out.bits_per_dimension(result.best_nll or 0.0), 4),
        **round_trip(flow.to(device).eval(), pixels, x),
    }


def main() -> None:
    """Print every run as it ends, and add it to a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=json.loads, nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    for changes in arguments.runs:
        found.append(pilot(changes, arguments.data, arguments.device))
        print(json.dumps(found[-1]), flush=True)
        if arguments.json:
            about = {
                "command": "python benchmarks/stability_pilots.py DATA "
                + " ".join(f"'{json.dumps(r['what'])}'" for r in found),
                "seed": 0,
                "hardware": hardware(arguments.device),
                "versions": versions(),
                "comparable_with_paper": "no: short runs, on validation images",
            }
            arguments.json.write_text(json.dumps({**about, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
