"""Recipes: the architecture and the training settings of each model, one TOML file for each dataset."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

from ...errors import ArgumentError
from ...models.defaults import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def recipes(dataset: str) -> dict[str, Recipe]:
    """All recipes for a dataset, by model."""
    file = resources.files(__package__) / f"{dataset}.toml"
    if not file.is_file():
        known = sorted(f.name[:-5] for f in resources.files(__package__).iterdir() if f.name.endswith(".toml"))
        raise ArgumentError(f"there are no recipes for {dataset!r}, only for {', '.join(known)}")
    found = {}
    for model, parts in read_toml(file).items():
        flow = {name: tuple(value) if isinstance(value, list) else value for name, value in parts["flow"].items()}
        found[model] = Recipe(flow, parts["training"], parts.get("as_long_as"))
    return found


def read_toml(file: Any) -> dict[str, Any]:
    """Read a file of the package."""
    return tomllib.loads(file.read_text(encoding="utf-8"))
