"""Model files and checkpoints with a valid checksum and invalid content."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import sinuflow
from sinuflow.bijections import Autoregressive, LDUBlock, Linear
from sinuflow.conditioners import MADE
from sinuflow.flows.bases import StudentT
from sinuflow.flows.storage import Model, read_model, write_model
from sinuflow.transformers import Affine
from tests.builders import trained_flow
from tests.models.small_images import gradients, quick_model
from tests.training.small import quick, small_flow

#: Values that a place in a description was not made for.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**4, 200_000, 20_000_000, 10**8, 10**9, 2**31, 2**53, 2**63, -(2**63),
    10**30, 0.0, -0.0, 0.5, -0.5, 1e-320, 1e-30, 1e30, 1e308, float("nan"), float("inf"), float("-inf"), "", "9", "a",
    "nan", "shift", "full", "none", "category", "number", "\x1b[31m", "\ud800", "x" * 10_000, [], [1], [0, 0], [[]], {},
    {"a": 1}, [1] * 1000, ["a", "a"], [None] * 3, {"features": 10**9}, "Chain", "Flow", "MADE", "ElementwiseAffine",
    {"class": "StandardNormal", "arguments": {"features": 2}}, {"class": "Shift", "arguments": {}}, {"mapping": {}},
    {"class": "Linear", "arguments": {"features": 10**5}}, {"class": "ElementwiseAffine", "arguments": {"features": 2}},
]  # fmt: skip

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]


def table() -> pd.DataFrame:
    """A small table of mixed types."""
    generator = np.random.default_rng(0)
    size = np.exp(generator.normal(size=120))
    kinds = generator.choice(["red", "green", "blue"], size=120)
    return pd.DataFrame({"size": size, "count": generator.poisson(3 * size), "kind": kinds, "unit": ["cm"] * 120})


def model_files(folder: Path) -> list[Path]:
    """Small valid model files of every kind."""
    paths = []

    def save(model: Any) -> None:
        paths.append(folder / f"{len(paths)}.safetensors")
        model.save(paths[-1])

    for conditioning, context in (("shift", 0), ("full", 2), ("none", 1)):
        save(trained_flow(2, context, conditioning, blocks=2, hidden=(4, 4), dtype=torch.float32))
    save(sinuflow.SinusoidalFlow.image((1, 3, 3), context=2, blocks=1, channels=2, conditioning="affine"))
    layers = [
        LDUBlock(2, 1, scales=1, waves=2, hidden=(4,)),
        Autoregressive(Affine(), MADE(2, 2, hidden=(4,)), order=[1, 0]),
        Linear(2),
    ]
    save(sinuflow.Flow(sinuflow.Chain(layers), StudentT(2)))
    options = {"steps": 3, "progress": False, "device": "cpu", "architecture": {"hidden": (4,), "blocks": 1}}
    save(sinuflow.fit_table(table(), **options))
    save(sinuflow.fit_table(table(), context=["kind"], **options))
    save(quick_model(gradients(), labels=[0, 1, 2] * 20))
    return paths


def checkpoints(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Checkpoints of unfinished runs, with the options that resume them."""
    found = []
    for i, options in enumerate(({}, {"ema": 0.9, "schedule": "plateau", "optimizer": "adamw"})):
        run = folder / str(i)
        run.mkdir()
        quick(small_flow(hidden=(4,)), steps=4, validate_every=2, checkpoint=run, **options)
        path = run / "checkpoint.safetensors"
        model = read_model(path)
        model.config["fingerprint"]["steps"], model.config["finished"] = 6, False
        write_model(path, model)
        found.append((path, {"steps": 6, "validate_every": 2, **options}))
    return found


def mutate(model: Model, generator: random.Random) -> Model:
    """The model with one to three mistakes in it."""
    config, tensors = copy.deepcopy(model.config), dict(model.tensors)
    kind = model.kind
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        if generator.random() < 0.6:
            config = _mutate_json(config, generator)
        elif generator.random() < 0.97:
            _mutate_tensors(tensors, generator)
        else:
            kind = generator.choice(("flow", "table", "images", "checkpoint", ""))
    return Model(kind, config, tensors)


def _mutate_json(document: Any, generator: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, entry in entries:
            places.append((value, key))
            walk(entry)

    walk(document)
    if not places or generator.random() < 0.01:
        return copy.deepcopy(generator.choice(VALUES))
    holder, key = generator.choice(places)
    action = generator.random()
    if action < 0.7:
        holder[key] = copy.deepcopy(generator.choice(VALUES))
    elif action < 0.8 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] += generator.choice((-1, 1, 1000, -1000, 0.5))
    elif action < 0.9:
        del holder[key]
    elif isinstance(holder, dict):
        holder[generator.choice(("extra", "image", "features", "hidden", "blocks", "step"))] = copy.deepcopy(
            generator.choice(VALUES)
        )
    else:
        holder.append(copy.deepcopy(generator.choice(VALUES)))
    return document


def _mutate_tensors(tensors: dict[str, torch.Tensor], generator: random.Random) -> None:
    name = generator.choice(sorted(tensors))
    tensor = tensors[name]
    actions: list[Callable[[], torch.Tensor | None]] = [
        lambda: None,
        lambda: tensor.to(generator.choice(DTYPES)),
        lambda: tensor.reshape(-1),
        lambda: tensor.reshape(-1)[: max(0, tensor.numel() - 1)].clone(),
        lambda: torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
        lambda: tensor.unsqueeze(0),
        lambda: tensor.mT.contiguous() if tensor.dim() == 2 else tensor.new_zeros(0),
        lambda: torch.full_like(tensor, generator.choice((0, 1, 5, 100))),
        lambda: (
            torch.full_like(tensor, generator.choice((torch.nan, torch.inf, -110.0, 1e38)))
            if tensor.is_floating_point()
            else torch.full_like(tensor, 0).bitwise_not()
        ),
        lambda: tensor.new_zeros((0, 2**40)),
    ]
    changed = generator.choice(actions)()
    if changed is None:
        del tensors[name]
        return
    changed = changed.contiguous().clone()
    if generator.random() < 0.1:
        tensors[generator.choice(("zzz", "flow/zzz", "optimizer/99/exp_avg", name + "/x"))] = changed
    else:
        tensors[name] = changed
