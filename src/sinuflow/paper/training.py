"""Training by a recipe, and scoring what came out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..compare import ZukoFlow
from ..data.benchmarks import Splits
from ..errors import ArgumentError, StorageError, TrainingError
from ..files import write_atomically
from ..flows.sinusoidal import SinusoidalFlow
from ..training import fit
from ..training.schedules import Plateau
from .items import Options
from .recipes import Recipe, recipes
from .record import hardware

#: Rows that are scored at once, and rows that are scored in float64 too.
_AT_ONCE, _CHECKED = 2**15, 4_000

#: In the folder of a run that is finished: what it was told and what came of it, and the weights.
_RUN, _WEIGHTS = "run.json", "weights.safetensors"

#: Steps of the runs that show how long a step takes.
_PACE = (20, 120)
#: However long another model took.
_MOST_STEPS = 2_000_000

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
    """How many steps take about so long, by how much longer a longer run takes than a shorter one.

    With ``options.runs`` it is asked once, and remembered: all seeds get the same.
    """
    place = None if options.runs is None else options.runs / f"{model}-steps.json"
    if place is not None and place.exists():
        return int(json.loads(place.read_text())["steps"])

    def time_of(steps: int) -> float:
        flow = build(model, recipe, rows.train.shape[-1])
        settings = {name: recipe.training[name] for name in ("batch_size", "learning_rate", "optimizer", "ema")}
        start = time.perf_counter()
        fit(flow, torch.from_numpy(np.ascontiguousarray(rows.train)), steps=steps, **settings, progress=False,
            device=options.device, validate_every=10**9)  # fmt: skip
        return time.perf_counter() - start

    short, long = _PACE
    time_of(short)  # the first one compiles, or warms something up
    paces = sorted((time_of(long) - time_of(short)) / (long - short) for _ in range(3))
    if paces[1] <= 0:
        raise TrainingError(f"the time of a step of {model} could not be measured: the machine is too busy")
    steps = max(long, min(int(seconds / paces[1]), _MOST_STEPS))
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps({"steps": steps, "seconds": seconds}).encode())
    return steps


def train(model: str, recipe: Recipe, rows: Splits, seed: int, options: Options, steps: int | None = None) -> Trained:
    """Train by a recipe, with fewer steps if so wanted.

    With ``options.runs``, an interrupted run goes on when it is started again, and a finished one is read.
    """
    settings = settings_of(recipe, steps)
    told = {"flow": recipe.flow, "training": settings, "seed": seed, "rows": len(rows.train), "data": glimpse(rows)}
    torch.manual_seed(seed)
    flow = build(model, recipe, rows.train.shape[-1])
    train, val = (torch.from_numpy(np.ascontiguousarray(part)) for part in (rows.train, rows.val))
    return train_as_told(flow, train, val, told, model, options)


def settings_of(recipe: Recipe, steps: int | None) -> dict[str, Any]:
    """The arguments for :func:`sinuflow.fit`, with at most so many steps."""
    settings = dict(recipe.training) | ({} if steps is None else {"steps": min(steps, recipe.training["steps"])})
    if "validate_every" in settings:
        settings["validate_every"] = min(settings["validate_every"], max(1, settings["steps"] // 2))
    return settings


def train_as_told(flow: Any, train: Any, val: Any, told: dict[str, Any], model: str, options: Options) -> Trained:
    """Train a flow, or read it if that has been done: ``told`` is all that decides about what comes out.

    Of it, ``training`` are the arguments for :func:`sinuflow.fit`, and ``seed`` its seed.
    """
    settings, seed = dict(told["training"]), told["seed"]
    if isinstance(settings["schedule"], dict):  # as TOML writes it
        settings["schedule"] = Plateau(**settings["schedule"])
    folder = run_folder(options, model, seed)
    if folder is not None and is_finished(folder):
        return _finished(folder, told, flow)
    start = time.perf_counter()
    result = fit(
        flow,
        train,
        val,
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
    if folder is not None:
        weights = {name: t.contiguous() for name, t in flow.state_dict().items()}
        write_atomically(folder / _WEIGHTS, to_safetensors(weights))
        outcome = {name: value for name, value in trained._asdict().items() if name != "flow"}
        write_atomically(folder / _RUN, json.dumps({"told": told, "outcome": outcome}).encode())
    return trained


def run_folder(options: Options, model: str, seed: int) -> Path | None:
    """Where a run leaves its files, if anywhere."""
    return None if options.runs is None else options.runs / f"{model}-{seed}"


def is_finished(folder: Path) -> bool:
    """Whether a folder has a run that came to its end."""
    return (folder / _RUN).exists()


class Stored(NamedTuple):
    """A finished run, as it is on disk."""

    told: dict[str, Any]
    outcome: dict[str, Any]
    weights: dict[str, Tensor]


def read_run(folder: Path) -> Stored:
    """What a finished run left."""
    try:
        stored = json.loads((folder / _RUN).read_text())
        return Stored(stored["told"], stored["outcome"], load_file(folder / _WEIGHTS))
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise StorageError(f"{folder} holds a run that cannot be read: delete it, and it is made again") from error


def _finished(folder: Path, told: dict[str, Any], flow: Any) -> Trained:
    stored = read_run(folder)
    if stored.told != json.loads(json.dumps(told)):
        raise ArgumentError(f"{folder} holds a run with other settings or data: choose another folder with --runs")
    flow.load_state_dict(stored.weights)
    return Trained(flow.eval(), **stored.outcome)


def glimpse(rows: Iterable[np.ndarray[Any, Any]]) -> str:
    """A few rows as a fingerprint."""
    digest = hashlib.sha256()
    for part in rows:
        digest.update(np.ascontiguousarray(part[:256]).tobytes())
    return digest.hexdigest()[:16]


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


def chosen_models(name: str, default: Iterable[str], options: Options) -> list[str]:
    """The models of a set that were asked for, or these; without zuko, its flows are left out then."""
    known = recipes(name)
    unknown = sorted(set(options.models) - set(known))
    if unknown:
        raise ArgumentError(f"{name} has no recipe {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = list(options.models or default)
    if find_spec("zuko") is not None or not set(chosen) & set(PEERS):
        return chosen
    if options.models:
        raise ArgumentError("other libraries' flows need zuko: pip install 'sinuflow[peers]'")
    options.say("zuko is not installed, so its flows are left out: pip install 'sinuflow[peers]'")
    return [model for model in chosen if model not in PEERS]


def folder_of(options: Options, name: str) -> Options:
    """The options, with a folder of its own for the runs of a set."""
    return options if options.runs is None else replace(options, runs=options.runs / name)
