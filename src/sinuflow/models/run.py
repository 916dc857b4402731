"""Training runs, which models of tables and of images have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data.sources import RowSource
from ..errors import ArgumentError
from ..flows.sinusoidal import SinusoidalFlow
from ..training import FitResult, fit
from .defaults import Recipe

_Flow = TypeVar("_Flow", bound=SinusoidalFlow)


@dataclass(frozen=True)
class Run:
    """A training run with the options of :func:`sinuflow.fit_table` and :func:`sinuflow.fit_images`."""

    steps: int | None
    seed: int
    device: str | torch.device
    checkpoint: str | os.PathLike[str] | None
    checkpoint_minutes: float
    resume: bool
    progress: bool
    architecture: Mapping[str, Any] | None
    training: Mapping[str, Any] | None
    started: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed must be an integer of at least 0; got {self.seed}")

    def build(self, kind: type[_Flow], recipe: Recipe, *sizes: Any) -> _Flow:
        """An untrained flow; its initial weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return kind(*sizes, **{**recipe.flow, **(self.architecture or {})})

    def train(self, flow: SinusoidalFlow, recipe: Recipe, train: RowSource, validation: RowSource) -> FitResult:
        """Train the flow with the recipe's settings, unless the options say otherwise."""
        settings = {**recipe.training, "checkpoint_minutes": self.checkpoint_minutes, **(self.training or {})}
        settings |= {} if self.steps is None else {"steps": self.steps}
        settings |= {"checkpoint": self.checkpoint, "resume": self.resume, "progress": self.progress}
        return fit(flow, train, validation, device=self.device, seed=self.seed, **settings)

    def facts(self, result: FitResult) -> dict[str, Any]:
        """The provenance of any fitted model."""
        taken = {"steps": result.steps, "best_step": result.best_step, "seconds": round(monotonic() - self.started, 1)}
        return {"seed": self.seed, **taken, "torch": torch.__version__}


def quantiles_of(scores: Tensor) -> Tensor:
    """The quantiles of scores that a fitted model stores: 1001, from the least to the largest."""
    return torch.quantile(scores, torch.linspace(0, 1, 1001, dtype=torch.float64))
