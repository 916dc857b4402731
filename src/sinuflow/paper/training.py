"""Training by a recipe, and scoring what came out."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.benchmarks import Splits
from ..errors import ArgumentError
from ..flow import SinusoidalFlow
from ..loading import load
from ..peers import ZukoFlow
from ..training import fit
from .items import Options
from .recipes import Recipe
from .record import hardware

#: Rows that are scored at once, and rows that are scored in float64 too.
_AT_ONCE, _CHECKED = 2**15, 4_000

#: In the folder of a run that is finished: what it was told and what came of it, and the flow.
_RUN, _FLOW = "run.json", "flow.safetensors"

#: Steps of the runs that show how long a step takes.
_PACE = (20, 120)

#: Other flows, by the name of their model.
PEERS = {"maf": "MAF", "nsf": "NSF"}


class Trained(NamedTuple):
    """A trained flow, and what its training was like."""

    flow: Any
    steps: int
    best_step: int
    best_nll: float
    seconds: float
    hardware: str


class Score(NamedTuple):
    """The mean NLL of rows, its standard error over them, and the error of float32: largest and mean, of some rows."""

    nll: float
    error: float
    float_max: float
    float_mean: float


def build(model: str, recipe: Recipe, features: int) -> Any:
    """The flow of a recipe, untrained."""
    if model in PEERS:
        name: Any = PEERS[model]
        return ZukoFlow(name, features, **recipe.flow)
    return SinusoidalFlow(features, **recipe.flow)


def steps_for(seconds: float, model: str, recipe: Recipe, rows: Splits, options: Options) -> int:
    """How many steps take about so long, by the difference between a short run and a shorter one."""
    times = []
    for steps in _PACE:
        flow = build(model, recipe, rows.train.shape[-1])
        settings = {name: recipe.training[name] for name in ("batch_size", "learning_rate", "optimizer", "ema")}
        start = time.perf_counter()
        fit(flow, torch.from_numpy(np.ascontiguousarray(rows.train)), steps=steps, **settings, progress=False,
            device=options.device, validate_every=10**9)  # fmt: skip
        times.append(time.perf_counter() - start)
    pace = max(1e-6, (times[1] - times[0]) / (_PACE[1] - _PACE[0]))
    return max(_PACE[1], int(seconds / pace))


def train(model: str, recipe: Recipe, rows: Splits, seed: int, options: Options, steps: int | None = None) -> Trained:
    """Train by a recipe, with fewer steps if so wanted.

    With ``options.runs``, an interrupted run goes on when it is started again, and a finished one is read.
    """
    settings = dict(recipe.training) | ({} if steps is None else {"steps": min(steps, recipe.training["steps"])})
    settings["validate_every"] = min(settings.get("validate_every", settings["steps"]), max(1, settings["steps"] // 2))
    folder = None if options.runs is None else options.runs / f"{model}-{seed}"
    told = {"flow": recipe.flow, "training": settings, "seed": seed, "rows": len(rows.train)}
    if folder is not None and (folder / _RUN).exists():
        return _finished(folder, told)
    torch.manual_seed(seed)
    flow = build(model, recipe, rows.train.shape[-1])
    start = time.perf_counter()
    result = fit(
        flow,
        torch.from_numpy(np.ascontiguousarray(rows.train)),
        torch.from_numpy(np.ascontiguousarray(rows.val)),
        **settings,
        checkpoint=folder,
        resume=folder is not None and folder.exists(),
        progress=options.progress,
        device=options.device,
        seed=seed,
    )
    if result.best_nll is None:
        raise ArgumentError("a recipe needs validation rows")
    seconds = max(time.perf_counter() - start, float(result.history[-1]["seconds"]))
    trained = Trained(flow, result.steps, result.best_step, result.best_nll, seconds, hardware(options.device))
    if folder is not None and isinstance(flow, SinusoidalFlow):
        flow.save(folder / _FLOW)
        outcome = {name: value for name, value in trained._asdict().items() if name != "flow"}
        (folder / _RUN).write_text(json.dumps({"told": told, "outcome": outcome}) + "\n")
    return trained


def _finished(folder: Path, told: dict[str, Any]) -> Trained:
    stored = json.loads((folder / _RUN).read_text())
    if stored["told"] != json.loads(json.dumps(told)):
        raise ArgumentError(f"{folder} holds a run with other settings: choose another folder with --runs")
    return Trained(load(folder / _FLOW), **stored["outcome"])


def score(flow: Any, rows: np.ndarray[Any, Any], device: str) -> Score:
    """Score rows in float32, and some of them in float64 beside."""
    x = torch.from_numpy(np.ascontiguousarray(rows))
    with torch.no_grad():
        flow.to(device)
        found = torch.cat([_log_prob(flow, part.to(device)) for part in x.split(_AT_ONCE)])
        exact = _log_prob(flow.double(), x[:_CHECKED].double().to(device))
        flow.float().cpu()
    off = (found[:_CHECKED] - exact).abs()
    error = float(found.std()) / len(found) ** 0.5
    return Score(-float(found.mean()), error, float(off.max()), float(off.mean()))


def _log_prob(flow: Any, x: Tensor) -> Tensor:
    scored: Tensor = flow(None).log_prob(x)
    return scored.double().cpu()


def folder_of(options: Options, name: str) -> Options:
    """The options, with a folder of its own for the runs of a set."""
    return options if options.runs is None else replace(options, runs=options.runs / name)
