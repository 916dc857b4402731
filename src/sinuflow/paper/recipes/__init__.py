"""Recipes: how each model is built and trained, as TOML files, one for each set."""

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
    """The arguments of :class:`sinuflow.SinusoidalFlow` and of :func:`sinuflow.fit`."""

    flow: dict[str, Any]
    training: dict[str, Any]
    #: If given, there are as many steps as take the time of this other model, instead of those in ``training``.
    as_long_as: str | None = None

    @property
    def digest(self) -> str:
        """A few letters that other recipes do not have."""
        told = json.dumps([self.flow, self.training, self.as_long_as], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def recipes(name: str) -> dict[str, Recipe]:
    """All recipes for a set, by model.

    Example:
        >>> recipes("power")["paper"].training["steps"]
        1200000
    """
    file = resources.files(__package__) / f"{name}.toml"
    if not file.is_file():
        known = sorted(f.name[:-5] for f in resources.files(__package__).iterdir() if f.name.endswith(".toml"))
        raise ArgumentError(f"there are no recipes for {name!r}, only for {', '.join(known)}")
    return {model: _recipe(parts) for model, parts in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def _recipe(parts: dict[str, Any]) -> Recipe:
    flow = {name: tuple(value) if isinstance(value, list) else value for name, value in parts["flow"].items()}
    return Recipe(flow, parts["training"], parts.get("as_long_as"))
