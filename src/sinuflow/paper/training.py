"""Training by a recipe, and reading finished runs."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..data.datasets import Dataset, Splits
from ..errors import ArgumentError, StorageError, TrainingError
from ..files import write_atomically
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.zuko import ZukoFlow
from ..models.defaults import Recipe
from ..training import Plateau, fit
from .items import Options
from .recipes import recipes
from .record import Result, hardware, results

T = TypeVar("T")

#: Files of a finished run: its settings and outcome, and the weights.
_RUN, _WEIGHTS = "run.json", "weights.safetensors"
#: Steps of the two runs that time a step, and the limit on the resulting number of steps.
_SHORT, _LONG, _MAX_STEPS = 20, 120, 2_000_000

#: zuko's flows, by the name of their recipe.
PEERS = {"maf": "MAF", "nsf": "NSF"}


@dataclass(frozen=True)
class Trained:
    """A flow that was trained by a recipe."""

    dataset: str
    model: str
    seed: int
    recipe: Recipe
    flow: Any
    steps: int
    best_step: int
    best_nll: float
    seconds: float
    hardware: str

    def results(
        self,
        metrics: Mapping[str, float],
        options: Options,
        comparable: str = "no: the paper shows a picture",
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> list[Result]:
        """One result for each metric; ``fields`` of :class:`~sinuflow.paper.Result` replace those of the training."""
        fields = {"steps": self.steps, "seconds": self.seconds, "hardware": self.hardware} | fields
        fields["extra"] = {**(extra or {}), "size": options.size, "recipe": self.recipe.digest}
        return results(metrics, self.dataset, self.model, self.seed, comparable=comparable, **fields)


def chosen_models(dataset: str, default: Iterable[str] | None, options: Options) -> dict[str, Recipe]:
    """Recipes of the requested models, by default of ``default`` or all; zuko's flows only if it is installed."""
    known = recipes(dataset)
    unknown = sorted(set(options.models) - set(known))
    if unknown:
        raise ArgumentError(f"{dataset} has no recipe {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = {model: known[model] for model in options.models or (known if default is None else default)}
    if find_spec("zuko") is not None or not chosen.keys() & PEERS.keys():
        return chosen
    if options.models:
        raise ArgumentError("other libraries' flows need zuko: pip install 'sinuflow[peers]'")
    options.say("zuko is not installed, so its flows are left out: pip install 'sinuflow[peers]'")
    return {model: recipe for model, recipe in chosen.items() if model not in PEERS}


def is_present(dataset: Dataset, options: Options) -> bool:
    """Whether a dataset can be loaded; smoke tests have synthetic images."""
    if options.size == "smoke" and dataset.examples == "images":
        return True
    return options.data is not None and dataset.count(options.data) is not None


def build(model: str, recipe: Recipe, features: int) -> Any:
    """The untrained flow of a recipe."""
    if model in PEERS:
        return ZukoFlow(PEERS[model], features, **recipe.flow)  # type: ignore[arg-type]
    return SinusoidalFlow(features, **recipe.flow)


def steps_for(seconds: float, dataset: str, model: str, recipe: Recipe, rows: Tensor, options: Options) -> int:
    """The number of training steps that take about ``seconds``.

    With ``options.runs`` it is measured once and stored, so that all seeds take the same number.
    """
    stored = None if options.runs is None else options.runs / dataset / f"{model}-steps.json"
    if stored is not None and stored.exists():
        return int(json.loads(stored.read_text())["steps"])

    def time_of(steps: int) -> float:
        flow = build(model, recipe, rows.shape[-1])
        settings = {name: recipe.training[name] for name in ("batch_size", "learning_rate", "optimizer", "ema")}
        start = time.perf_counter()
        fit(flow, rows, steps=steps, **settings, progress=False, device=options.device, validate_every=10**9)
        return time.perf_counter() - start

    time_of(_SHORT)  # compilation and warm-up
    pace = statistics.median((time_of(_LONG) - time_of(_SHORT)) / (_LONG - _SHORT) for _ in range(3))
    if pace <= 0:
        raise TrainingError(f"the time of a step of {model} could not be measured: the machine is too busy")
    steps = max(_LONG, min(int(seconds / pace), _MAX_STEPS))
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stored, json.dumps({"steps": steps, "seconds": seconds}).encode())
    return steps


def train(
    model: str, recipe: Recipe, rows: Splits, seed: int, options: Options, dataset: str, steps: int | None = None
) -> Trained:
    """Train by a recipe, for at most ``steps`` steps; with ``options.runs``, as :func:`train_or_read`."""
    training = training_settings(recipe, steps)
    settings = {"flow": recipe.flow, "training": training, "seed": seed, "rows": len(rows.train), "data": digest(rows)}
    torch.manual_seed(seed)
    flow = build(model, recipe, rows.train.shape[-1])
    train, val = torch.from_numpy(rows.train), torch.from_numpy(rows.val)
    trained, folder = partial(Trained, dataset, model, seed, recipe), run_folder(options, dataset, model, seed)
    return train_or_read(trained, flow, train, val, settings, folder, options)


def training_settings(recipe: Recipe, steps: int | None) -> dict[str, Any]:
    """The arguments of :func:`sinuflow.fit`, with at most ``steps`` steps."""
    settings = dict(recipe.training) | ({} if steps is None else {"steps": min(steps, recipe.training["steps"])})
    if "validate_every" in settings:
        settings["validate_every"] = min(settings["validate_every"], max(1, settings["steps"] // 2))
    return settings


def run_folder(options: Options, dataset: str, model: str, seed: int) -> Path | None:
    """The folder of a run, if runs are stored."""
    return None if options.runs is None else options.runs / dataset / f"{model}-{seed}"


def train_or_read(
    trained: Callable[..., T],
    flow: Any,
    train: Any,
    val: Any,
    settings: dict[str, Any],
    folder: Path | None,
    options: Options,
) -> T:
    """Train a flow, or read it from the folder of its finished run; an interrupted run resumes.

    ``trained`` is called with the flow and the outcome of the run. ``settings`` identifies the run:
    ``settings["training"]`` are the arguments of :func:`sinuflow.fit`, and ``settings["seed"]`` is its seed.
    """
    run = read_run(folder)
    if run is not None:
        stored, outcome, weights = run
        if stored != json.loads(json.dumps(settings)):
            raise ArgumentError(f"{folder} holds a run with other settings or data: choose another folder with --runs")
        flow.load_state_dict(weights)
        return trained(flow.eval(), **outcome)
    training = dict(settings["training"])
    if isinstance(training["schedule"], dict):  # a TOML table
        training["schedule"] = Plateau(**training["schedule"])
    start = time.perf_counter()
    common = {"progress": options.progress, "device": options.device, "seed": settings["seed"]}
    result = fit(flow, train, val, **training, **common, checkpoint=folder, resume=folder is not None)
    seconds = max(time.perf_counter() - start, float(result.history[-1]["seconds"]))  # of earlier parts of the run too
    outcome = {name: getattr(result, name) for name in ("steps", "best_step", "best_nll")}
    outcome |= {"seconds": seconds, "hardware": hardware(options.device)}
    if folder is not None:
        weights = {name: t.contiguous() for name, t in flow.state_dict().items()}
        write_atomically(folder / _WEIGHTS, to_safetensors(weights))
        write_atomically(folder / _RUN, json.dumps({"told": settings, "outcome": outcome}).encode())
    return trained(flow, **outcome)


def read_run(folder: Path | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]] | None:
    """The settings, the outcome and the weights of a finished run, if the folder holds one."""
    if folder is None or not (folder / _RUN).exists():
        return None
    try:
        stored = json.loads((folder / _RUN).read_text())
        return stored["told"], stored["outcome"], load_file(folder / _WEIGHTS)  # the key of version 0.1.0
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise StorageError(f"{folder} holds a run that cannot be read: delete it, and it is made again") from error


def digest(parts: Iterable[np.ndarray[Any, Any]]) -> str:
    """A fingerprint of the first examples of each split."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(np.ascontiguousarray(part[:256]).tobytes())
    return sha.hexdigest()[:16]
