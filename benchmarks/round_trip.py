"""Round-trip errors of a trained image flow on test images, in float32 and float64.

    python benchmarks/round_trip.py DATASET WEIGHTS DATA [--model NAME] [--images N] [--exact M] [--device D]
                                                      [--json FILE]

WEIGHTS is the state of a flow, stored by `sinuflow reproduce images` (weights.safetensors), NAME its recipe (today),
and DATA the folder of the dataset. Errors are the largest ones in logits, and of pixels between 0 and 1. For the M
images with the largest float32 errors, two more errors are measured: that of the exact inverse of exact noise that is
rounded to float32, about the best that float32 can reach, and that of float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

import sinuflow
from records import make_record, write
from sinuflow.bijections.pixels import PixelMap
from sinuflow.data.image_sets import image_set
from sinuflow.paper.recipes import recipes
from sinuflow.training import ImageRows

_BATCH = 100


class Errors(NamedTuple):
    """The largest error of each image, in logits and of pixels between 0 and 1; NaN counts as infinite."""

    logits: torch.Tensor
    pixels: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, true: torch.Tensor, pixels: PixelMap) -> Errors:
        """The errors of reconstructions."""
        seen = [pixels.to_unit(t.double()).value for t in (x, true)]
        errors = (x - true, seen[0] - seen[1])
        return cls(*(each.abs().nan_to_num(nan=torch.inf).amax(1).double().cpu() for each in errors))


class RoundTrip(NamedTuple):
    """Errors, residuals and certificates of images that were mapped to noise and back."""

    errors: Errors
    residual: torch.Tensor
    certified: torch.Tensor


@torch.no_grad()
def round_trip(flow: sinuflow.SinusoidalFlow, pixels: PixelMap, x: torch.Tensor) -> RoundTrip:
    """Map images to noise and back, in the precision of ``x``."""
    logits, seen, residual, certified = [], [], [], []
    for part in x.split(_BATCH):
        inverse = flow.invert(flow.bijection(part)[0], on_failure="return")
        errors = Errors.of(inverse.x, part, pixels)
        logits.append(errors.logits)
        seen.append(errors.pixels)
        residual.append(inverse.residual.cpu())
        certified.append(inverse.converged.cpu())
    return RoundTrip(Errors(torch.cat(logits), torch.cat(seen)), torch.cat(residual), torch.cat(certified))


@torch.no_grad()
def measure(flow: sinuflow.SinusoidalFlow, pixels: PixelMap, x: torch.Tensor, exact: int) -> dict[str, Any]:
    """All errors of a flow."""
    single, doubled = round_trip(flow, pixels, x), copy.deepcopy(flow).double()
    worst = single.errors.logits.argsort(descending=True)[:exact]
    precise = x[worst.to(x.device)].double()
    double = round_trip(doubled, pixels, precise)
    rounded = []
    for part in precise.split(_BATCH):
        noise = doubled.bijection(part)[0].float().double()
        rounded.append(Errors.of(doubled.invert(noise, on_failure="return").x, part, pixels))
    lost = Errors(*(torch.cat(each) for each in zip(*rounded, strict=True)))
    return {
        "images": len(x),
        "float32_error": float(single.errors.logits.max()),
        "float32_error_of_pixels": float(single.errors.pixels.max()),
        "images_off_by_more_than_1e-4": int((single.errors.logits > 1e-4).sum()),
        "images_with_pixels_off_by_more_than_1e-4": int((single.errors.pixels > 1e-4).sum()),
        "float32_residual": float(single.residual.max()),
        "certified": int(single.certified.sum()),
        "worst_images_in_float64": len(worst),
        "error_of_rounded_noise": float(lost.logits.max()),
        "error_of_rounded_noise_of_pixels": float(lost.pixels.max()),
        "images_off_by_more_than_1e-4_by_rounded_noise": int((lost.logits > 1e-4).sum()),
        "float64_error": float(double.errors.logits.max()),
    }


def main() -> None:
    """Print the errors, and add them to a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("weights", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="today")
    parser.add_argument("--images", type=int)
    parser.add_argument("--exact", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start, about = time.perf_counter(), image_set(arguments.dataset)
    flow = sinuflow.SinusoidalFlow.image(about.shape, **recipes(arguments.dataset)[arguments.model].flow)
    flow.load_state_dict(load_file(arguments.weights))
    images = torch.from_numpy(about.load(arguments.data).test[: arguments.images])
    pixels = PixelMap(about.alpha)
    x = torch.cat([batch.x for batch in ImageRows(images, pixels).in_order(1000)])
    errors = measure(flow.eval().to(arguments.device), pixels, x.to(arguments.device), arguments.exact)
    print(arguments.dataset, errors)
    if arguments.json:
        record = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        words = [f"python benchmarks/round_trip.py {arguments.dataset} WEIGHTS DATA --exact {arguments.exact}"]
        words += [f"--model {arguments.model}"] if arguments.model != "today" else []
        words += [f"--images {arguments.images}"] if arguments.images else []
        words += [f"--device {arguments.device}"] if arguments.device != "cpu" else []
        names = [arguments.dataset, arguments.model if arguments.model != "today" else "", arguments.device]
        record[", ".join(name for name in names if name not in ("", "cpu"))] = make_record(
            " ".join(words), start, "no: the paper gives no numbers", arguments.device, **errors
        )
        write(arguments.json, record)


if __name__ == "__main__":
    main()
