"""What all fitted models have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..checks import Check, anything, fields, integer, items, number
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import Model, write_model
from ..training.history import RECORD

_Self = TypeVar("_Self", bound="FittedModel")


class FittedModel(ABC):
    """A flow together with the schema of its data and the provenance of its training.

    Args:
        flow: over the encoded data.
        quantiles: of the scores by which anomalies are ranked, in increasing order.
        history: the records of the training run.
        facts: provenance: data, seed, steps, seconds, versions.
    """

    flow: SinusoidalFlow
    quantiles: Tensor
    history: list[dict[str, Any]]
    facts: dict[str, Any]
    #: The kind of model file, and what it is called in messages.
    kind: ClassVar[str]
    description: ClassVar[str]
    #: The schema of its configuration, and the names of its tensors.
    schema: ClassVar[Check]
    tensor_names: ClassVar[set[str]] = set()

    @abstractmethod
    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The configuration and tensors that the model file holds in addition to those of all models."""

    @classmethod
    @abstractmethod
    def parse(
        cls, config: dict[str, Any], groups: dict[str, dict[str, Tensor]], flow: SinusoidalFlow
    ) -> tuple[Any, ...]:
        """The constructor's arguments after the flow, from a stored configuration that fits the schema.

        A ValueError says why they do not fit each other, or the flow.
        """

    def to(self: _Self, device: str | torch.device) -> _Self:
        """Move the flow to a device, and return the model itself."""
        self.flow.to(device)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, atomically; :func:`sinuflow.load` reads it."""
        own, tensors = self._stored()
        config = {"flow": self.flow.config, **own, "history": self.history, "facts": self.facts}
        weights = {f"flow/{name}": t for name, t in self.flow.usable_state(path).items()}
        write_model(path, Model(self.kind, config, {**weights, **tensors, "quantiles": self.quantiles}))

    @property
    def _like(self) -> Tensor:
        """A tensor with the flow's dtype and device."""
        return next(self.flow.parameters())


def model_schema(own: dict[str, Check], facts: dict[str, Check], optional_facts: dict[str, Check]) -> Check:
    """The schema of a fitted model's configuration: its own fields and facts besides those of all models."""
    steps = integer()
    facts = {"seed": integer(0, 2**63), "steps": steps, "best_step": steps, "seconds": number(low=0), **facts}
    flow = fields({}, others=anything)  # checked when it is built
    return fields(
        {"flow": flow, "history": items(RECORD), "facts": fields(facts, optional_facts, others=anything), **own}
    )
