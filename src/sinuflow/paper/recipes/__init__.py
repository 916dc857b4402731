"""Recipes: the architecture and the training settings of each model, one TOML file for each dataset."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ...errors import ArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Recipe:
    """Arguments of :class:`sinuflow.SinusoidalFlow` (or of a peer's flow) and of :func:`sinuflow.fit`."""

    flow: dict[str, Any]
    training: dict[str, Any]
    #: A model with the same training time; it replaces the number of steps in ``training``.
    as_long_as: str | None = None

    @property
    def digest(self) -> str:
        """Identifies the recipe."""
        content = json.dumps([self.flow, self.training, self.as_long_as], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def recipes(dataset: str) -> dict[str, Recipe]:
    """All recipes for a dataset, by model.

    Example:
        >>> recipes("power")["paper"].training["steps"]
        1200000
    """
    file = resources.files(__package__) / f"{dataset}.toml"
    if not file.is_file():
        known = sorted(f.name[:-5] for f in resources.files(__package__).iterdir() if f.name.endswith(".toml"))
        raise ArgumentError(f"there are no recipes for {dataset!r}, only for {', '.join(known)}")
    return {model: _recipe(parts) for model, parts in read_toml(file).items()}


def _recipe(parts: dict[str, Any]) -> Recipe:
    flow = {name: tuple(value) if isinstance(value, list) else value for name, value in parts["flow"].items()}
    return Recipe(flow, parts["training"], parts.get("as_long_as"))


def read_toml(file: Any) -> dict[str, Any]:
    """Read a file of the package."""
    return tomllib.loads(file.read_text(encoding="utf-8"))
