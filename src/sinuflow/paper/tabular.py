"""Table "uci_results": test NLL of tabular data by Sinusoidal Flows and by zuko's flows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.datasets import BENCHMARKS, Splits
from ..errors import ArgumentError
from ..models.defaults import Recipe
from .comparison import Comparison, Evaluation
from .items import Options
from .record import hardware, read_record
from .training import steps_for, train

#: Rows scored at a time, and rows that are scored in float64 too.
_BATCH, _CHECKED = 2**15, 4_000


def load(name: str, options: Options) -> Splits:
    """The rows of a run."""
    rows = options.of(full=None, quick=20_000, smoke=400)
    return Splits(*(part[:rows] for part in BENCHMARKS[name].load(options.data)))


def evaluate(name: str, model: str, recipe: Recipe, splits: Splits, seed: int, options: Options) -> Evaluation:
    """Train a model, and score it."""
    if recipe.as_long_as is not None and options.size == "full":
        seconds = _seconds_of(name, recipe.as_long_as, options)
        steps = steps_for(seconds, name, model, recipe, torch.from_numpy(splits.train), options)
        recipe = replace(recipe, training=recipe.training | {"steps": steps})
    run = train(model, recipe, splits, seed, options, name, options.of(full=None, quick=300, smoke=40))
    flow, x, device = run.flow, torch.from_numpy(splits.test), options.device
    with torch.no_grad():
        flow.to(device)
        test = torch.cat([_nll(flow, part.to(device)) for part in x.split(_BATCH)])
        exact = _nll(flow.double(), x[:_CHECKED].double().to(device))
    return run, run.outcome["best_nll"], test, exact


def _nll(flow: Any, x: Tensor) -> Tensor:
    log_prob: Tensor = flow(None).log_prob(x)
    return -log_prob.double().cpu()


PAPER = {"power": -0.59, "gas": -12.15, "hepmass": 16.10, "miniboone": 9.25, "bsds300": -156.75}
COMPARISON = Comparison("test NLL, nats", PAPER, BENCHMARKS, load, evaluate)
run = COMPARISON.run


def _seconds_of(name: str, model: str, options: Options) -> float:
    """The recorded training time of another model on this machine, per seed."""
    here = hardware(options.device)
    for entry in read_record(options.out / "tabular.json"):
        if (entry["set"], entry["model"], entry.get("size"), entry["hardware"]) == (name, model, "full", here):
            return float(entry["seconds"]) / len(entry["seeds"])
    raise ArgumentError(f"run {name} with --model {model} first on this machine: the others get the same training time")
