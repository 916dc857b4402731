"""What a table's size says about the model that it can carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """A flow's architecture and how it is trained."""

    architecture: dict[str, Any]
    training: dict[str, Any]


def recipe(rows: int, features: int, conditioning: str = "full") -> Recipe:
    """The defaults for a table with so many training rows and modelled columns.

    Few rows carry few parameters: small tables get small networks with dropout and weight decay,
    large ones get wide networks and more steps.
    """
    if rows < 500:
        size: dict[str, Any] = {"hidden": (32, 32), "blocks": 3, "scales": 1, "dropout": 0.2}
        steps, rate, decay = 1_500, 1e-3, 1e-2
    elif rows < 2_000:
        size = {"hidden": (128, 128), "blocks": 4, "scales": 2, "dropout": 0.2}
        steps, rate, decay = 3_000, 2e-3, 1e-2
    elif rows < 10_000:
        size = {"hidden": (256, 256), "blocks": 4, "scales": 1, "waves": 8, "dropout": 0.3}
        steps, rate, decay = 4_000, 1e-3, 1e-3
    else:
        size = {"hidden": (128, 128), "blocks": 5, "scales": 2, "dropout": 0.0}
        steps, rate, decay = 8_000, 2e-3, 1e-4
    if conditioning == "shift":
        size = {**size, "blocks": 2 * size["blocks"], "scales": 4, "waves": 4}
    training = {
        "steps": steps,
        "batch_size": 512 if rows >= 10_000 else 256 if rows >= 1_000 else 64,
        "learning_rate": rate,
        "optimizer": "adamw",
        "weight_decay": decay,
        "schedule": "cosine",
        "ema": 0.99,
        "patience": 20,
    }
    return Recipe({"conditioning": conditioning, **size}, training)
