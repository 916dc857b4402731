"""A small flow and dataset that train in seconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import torch

import sinuflow
from sinuflow import SinusoidalFlow, fit


def banana(rows: int, seed: int = 0) -> torch.Tensor:
    """A standardized crescent."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    x[:, 1] = 0.7 * x[:, 0] ** 2 + 0.3 * x[:, 1]
    return (x - x.mean(0)) / x.std(0)


def small_flow(seed: int = 0, **options: object) -> SinusoidalFlow:
    torch.manual_seed(seed)
    return SinusoidalFlow(2, conditioning="full", **{"blocks": 2, "hidden": (16, 16), **options})


def weights_of(flow: SinusoidalFlow) -> list[torch.Tensor]:
    return [t.clone() for t in flow.state_dict().values()]


def nll(flow: SinusoidalFlow, x: torch.Tensor) -> float:
    with torch.no_grad():
        return -float(flow().log_prob(x).mean())


def quick(flow: SinusoidalFlow, **options: object) -> sinuflow.FitResult:
    settings = {"steps": 60, "batch_size": 64, "validate_every": 20, "progress": False, "device": "cpu"}
    return fit(flow, banana(400), banana(200, seed=1), **{**settings, **options})


def parquet_folder(folder, rows=1000, files=4):
    x = banana(rows).numpy().astype(np.float64)
    for i, part in enumerate(np.array_split(x, files)):
        pa.parquet.write_table(pa.table({"a": part[:, 0], "b": part[:, 1]}), folder / f"{i}.parquet")
    return pa.dataset.dataset(str(folder)), x


class Clock:
    """A clock that is set by hand, in place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now
