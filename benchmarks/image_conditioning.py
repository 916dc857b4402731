"""Compare conditioning="shift" and "affine" of small image flows, trained by `fit_images` on a CPU.

    python benchmarks/image_conditioning.py [DATA] [--seeds N] [--json FILE]

The datasets are scikit-learn's digits with their classes, with noise that hides their few grey levels, and, if
DATA is a folder with CIFAR-10, 6,000 of its images, downsampled by 4. Bits per dimension are those of the validation
images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import sinuflow
from records import make_record, write
from sinuflow.data.image_sets import IMAGE_SETS
from sinuflow.paper.images import downsample

CONDITIONINGS = ("shift", "affine")
#: Number and shape of CIFAR-10's images.
_IMAGES, _SHAPE = 6_000, (3, 8, 8)
#: The difference of two grey levels of the digits, which are 0 to 16.
_STEP = 15


def datasets(data: Path | None) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Images and classes, by name."""
    digits = load_digits()
    noise = np.random.default_rng(0).integers(_STEP, size=digits.images.shape)
    bytes_ = torch.from_numpy((_STEP * digits.images + noise).astype(np.uint8)).unsqueeze(1)
    images: dict[str, Any] = {"digits": (bytes_, torch.from_numpy(digits.target))}
    if data is not None:
        photographs = torch.from_numpy(IMAGE_SETS["cifar10"].load(data).train[:_IMAGES])
        images["cifar10, 8x8"] = (downsample(photographs, _SHAPE), None)
    return images


def measure(images: torch.Tensor, labels: torch.Tensor | None, conditioning: Any, seed: int) -> dict[str, Any]:
    """Bits per dimension, time and round-trip error of one flow."""
    start = time.perf_counter()
    model = sinuflow.fit_images(
        images, labels=labels, size="small", conditioning=conditioning, seed=seed, device="cpu", progress=False
    )
    return {
        "bits_per_dimension": model.facts["bits_per_dimension"],
        "bits_by_counting": model.facts["histogram_bits"],
        "steps": model.facts["steps"],
        "seconds": round(time.perf_counter() - start, 1),
        "round_trip": model.facts["round_trip"],
    }


def main() -> None:
    """Print a table, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    results = []
    print("| dataset | seed | conditioning | bits/dim | histogram baseline | seconds | round-trip error |")
    print("|---|---|---|---|---|---|---|")
    for name, (images, labels) in datasets(arguments.data).items():
        for seed in range(arguments.seeds):
            for conditioning in CONDITIONINGS:
                result = measure(images, labels, conditioning, seed)
                results.append({"set": name, "seed": seed, "conditioning": conditioning, **result})
                bits = [f"{result[what]:.3f}" for what in ("bits_per_dimension", "bits_by_counting")]
                cells = [name, seed, conditioning, *bits, result["seconds"], f"{result['round_trip']:.1e}"]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if arguments.json:
        command = f"python benchmarks/image_conditioning.py{' DATA' if arguments.data else ''}"
        comparable = "no: small flows, and validation images"
        seeds = f"0 to {arguments.seeds - 1}"
        write(arguments.json, make_record(command, start, comparable, seed=seeds, results=results))


if __name__ == "__main__":
    main()
