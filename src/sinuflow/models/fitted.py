"""The base class of fitted models, and their training runs."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..checks import Check, anything, fields, integer, items, number
from ..data.sources import RowSource
from ..errors import ArgumentError
from ..flows.flow import Flow
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import Model, write_model
from ..training import FitResult, fit
from ..training.history import RECORD
from ..training.improvement import still_improving
from .defaults import Recipe

_Self = TypeVar("_Self", bound="FittedModel")
_Flow = TypeVar("_Flow", bound=SinusoidalFlow)


class FittedModel(ABC):
    """A flow together with the schema of its data and the provenance of its training.

    Args:
        flow: the density of the encoded data.
        quantiles: quantiles of the scores by which anomalies are ranked, in increasing order.
        history: the records of the training run.
        facts: provenance: data, seed, steps, seconds, versions.
    """

    flow: Flow
    quantiles: Tensor
    history: list[dict[str, Any]]
    facts: dict[str, Any]
    #: The kind of model file, and its name in messages.
    kind: ClassVar[str]
    description: ClassVar[str]
    #: The schema of its configuration, and the names of its tensors.
    schema: ClassVar[Check]
    tensor_names: ClassVar[set[str]] = set()

    @abstractmethod
    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The configuration and tensors of this kind of model, besides those of all models."""

    @classmethod
    @abstractmethod
    def parse(cls, config: dict[str, Any], groups: dict[str, dict[str, Tensor]], flow: Flow) -> tuple[Any, ...]:
        """The constructor's arguments after the flow, from a stored configuration that fits the schema.

        Raises a ValueError if they are inconsistent with each other or with the flow.
        """

    def to(self: _Self, device: str | torch.device) -> _Self:
        """Move the flow to a device, and return the model itself."""
        self.flow.to(device)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, atomically; :func:`sinuflow.load` reads it."""
        fields, tensors = self._stored()
        config = {"flow": self.flow.config, **fields, "history": self.history, "facts": self.facts}
        weights = {f"flow/{name}": t for name, t in self.flow.usable_state(path).items()}
        write_model(
            path, Model(self.kind, config, {**weights, **tensors, "quantiles": self.quantiles}), self.format_version
        )

    @property
    def format_version(self) -> int:
        """The lowest version of the file format that holds the model."""
        return 1

    @property
    def _like(self) -> Tensor:
        """A tensor with the flow's dtype and device."""
        return next(self.flow.parameters())


def model_schema(extra: dict[str, Check], facts: dict[str, Check], optional_facts: dict[str, Check]) -> Check:
    """The schema of a fitted model's configuration; the arguments extend the fields and facts of all models."""
    steps = integer()
    optional_facts = {"more_steps": integer(1), **optional_facts}
    facts = {"seed": integer(0, 2**63), "steps": steps, "best_step": steps, "seconds": number(low=0), **facts}
    flow = fields({}, others=anything)  # checked when it is built
    return fields(
        {"flow": flow, "history": items(RECORD), "facts": fields(facts, optional_facts, others=anything), **extra}
    )


@dataclass(frozen=True)
class Run:
    """A training run with the options of :func:`sinuflow.fit_table` and :func:`sinuflow.fit_images`."""

    steps: int | None
    minutes: float | None
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
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ArgumentError(f"minutes must be a number above 0; got {self.minutes}")

    def build(self, kind: type[_Flow], recipe: Recipe, *sizes: Any) -> _Flow:
        """An untrained flow; its initial weights depend on the seed alone."""
        with self.seeded():
            return kind(*sizes, **{**recipe.flow, **(self.architecture or {})})

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """A context in which PyTorch's random numbers depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            yield

    def train(
        self,
        flow: Flow,
        recipe: Recipe,
        train: RowSource,
        validation: RowSource,
        time_fraction: float = 1.0,
        steps_before: int = 0,
    ) -> FitResult:
        """Train the flow with the recipe's settings, which the options of the run override.

        Args:
            flow: the flow, trained in place.
            recipe: its settings.
            train: the training rows.
            validation: the validation rows.
            time_fraction: the part of the minutes that this training may take, if they are limited.
            steps_before: the number of steps of earlier runs, if the flow is trained further.
        """
        settings = {**recipe.training, "checkpoint_minutes": self.checkpoint_minutes}
        if self.minutes is not None:
            settings |= {"steps": None, "minutes": time_fraction * self.minutes}
        settings |= {**(self.training or {})}
        settings |= {} if self.steps is None else {"steps": self.steps}
        settings |= {"checkpoint": self.checkpoint, "resume": self.resume, "progress": self.progress}
        seed = (self.seed + steps_before) % 2**63  # the rows have another order than in the earlier runs
        return fit(flow, train, validation, device=self.device, seed=seed, initialize=not steps_before, **settings)

    def refit(
        self, flow: Flow, recipe: Recipe, train: RowSource, part_steps: Sequence[int], time_fraction: float
    ) -> None:
        """Train the parts of a flow for these numbers of steps, in a fraction of the minutes, without validation."""
        parts = len(getattr(flow, "parts", ((flow,),)))
        if len(part_steps) != parts or not any(part_steps):
            # A fold may have no levels, and so fewer parts; or the initial weights may have been the best.
            part_steps = [max(1, *part_steps)] * parts
        settings = {**recipe.training, **(self.training or {}), "steps": max(part_steps), "patience": None}
        settings |= {} if self.minutes is None else {"minutes": time_fraction * self.minutes}
        fit(flow, train, device=self.device, seed=self.seed, progress=False, part_steps=part_steps, **settings)

    def facts(self, result: FitResult, continued: bool = False) -> dict[str, Any]:
        """The provenance of any fitted model; ``more_steps`` if the validation NLL was still improving."""
        steps = {"steps": result.steps, "best_step": result.best_step, "seconds": round(monotonic() - self.started, 1)}
        improving = not result.stopped_early and still_improving(result.history, continued)
        more = {"more_steps": 2 * result.steps} if improving else {}
        return {"seed": self.seed, **steps, **more, "torch": torch.__version__}


def quantiles_of(scores: Tensor) -> Tensor:
    """1001 quantiles of scores, from the smallest to the largest, which a fitted model stores."""
    return torch.quantile(scores, torch.linspace(0, 1, 1001, dtype=torch.float64))
