"""Training by a recipe, and reading finished runs."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

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

#: Files of a finished run: its settings and outcome, and the weights.
_RUN, _WEIGHTS = "run.json", "weights.safetensors"
#: The key of a run's settings in its file, as version 0.1.0 wrote it.
_SETTINGS = "told"
#: Steps that are timed at once, and the limit on the resulting number of steps.
_TIMED, _MAX_STEPS = 100, 2_000_000

#: zuko's flows, by the name of their recipe.
PEERS = {"maf": "MAF", "nsf": "NSF"}


@dataclass
class RecipeRun:
    """A training run of a recipe; with ``options.runs``, interrupted runs resume, and finished ones are read."""

    dataset: str
    model: str
    seed: int
    recipe: Recipe
    options: Options
    flow: Any = None
    outcome: dict[str, Any] = field(default_factory=dict)  # steps, best_step, best_nll, seconds and hardware

    @property
    def folder(self) -> Path | None:
        runs = self.options.runs
        return None if runs is None else runs / self.dataset / f"{self.model}-{self.seed}"

    def training(self, steps: int | None) -> dict[str, Any]:
        """The arguments of :func:`sinuflow.fit`, with at most ``steps`` steps."""
        training = dict(self.recipe.training)
        if steps is not None:
            training["steps"] = min(steps, training["steps"])
        if "validate_every" in training:
            training["validate_every"] = min(training["validate_every"], max(1, training["steps"] // 2))
        return training

    def train(self, train: Any, val: Any, splits: Splits, steps: int | None, **identity: Any) -> None:
        """Train the flow for at most ``steps`` steps, or read its weights if a run with these settings is finished."""
        folder, options = self.folder, self.options
        first_examples = b"".join(part[:256].tobytes() for part in splits)
        settings = {
            **identity,
            "flow": self.recipe.flow,
            "training": self.training(steps),
            "seed": self.seed,
            "rows": len(splits.train),
            "data": hashlib.sha256(first_examples).hexdigest()[:16],
        }
        finished = self.read()
        if finished is not None:
            stored, self.outcome, weights = finished
            if stored != json.loads(json.dumps(settings)):
                raise ArgumentError(f"{folder} holds a run with other settings or data: use another folder with --runs")
            self.flow.load_state_dict(weights)
            self.flow.eval()
            return
        arguments = {"progress": options.progress, "device": options.device, "seed": self.seed, **settings["training"]}
        if isinstance(arguments["schedule"], dict):  # a TOML table
            arguments["schedule"] = Plateau(**arguments["schedule"])
        start = time.perf_counter()
        result = fit(self.flow, train, val, **arguments, checkpoint=folder, resume=folder is not None)
        seconds = max(time.perf_counter() - start, float(result.history[-1]["seconds"]))  # of earlier parts too
        self.outcome = {name: getattr(result, name) for name in ("steps", "best_step", "best_nll")}
        self.outcome |= {"seconds": seconds, "hardware": hardware(options.device)}
        if folder is not None:
            weights = {name: t.contiguous() for name, t in self.flow.state_dict().items()}
            write_atomically(folder / _WEIGHTS, to_safetensors(weights))
            write_atomically(folder / _RUN, json.dumps({_SETTINGS: settings, "outcome": self.outcome}).encode())

    def read(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]] | None:
        """The settings, the outcome and the weights of the finished run in the folder, if there is one."""
        folder = self.folder
        if folder is None or not (folder / _RUN).exists():
            return None
        try:
            stored = json.loads((folder / _RUN).read_text())
            return stored[_SETTINGS], stored["outcome"], load_file(folder / _WEIGHTS)
        except (ValueError, KeyError, OSError, SafetensorError) as error:
            raise StorageError(f"{folder} holds a run that cannot be read: delete it, and it is made again") from error

    def results(
        self,
        metrics: Mapping[str, float],
        comparable: str = "no: the paper shows a picture",
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> list[Result]:
        """One result for each metric; ``fields`` of :class:`~sinuflow.paper.Result` replace those of the training."""
        fields = {name: self.outcome[name] for name in ("steps", "seconds", "hardware")} | fields
        fields["extra"] = {**(extra or {}), "size": self.options.size, "recipe": self.recipe.digest}
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
    """The number of training steps that take about ``seconds``, measured once for all seeds with ``options.runs``."""
    stored = None if options.runs is None else options.runs / dataset / f"{model}-steps.json"
    if stored is not None and stored.exists():
        return int(json.loads(stored.read_text())["steps"])
    flow = build(model, recipe, rows.shape[-1])
    settings = {name: recipe.training[name] for name in ("batch_size", "learning_rate", "optimizer", "ema")}
    settings |= {"steps": 4 * _TIMED, "validate_every": _TIMED, "progress": False, "device": options.device}
    times = [float(record["seconds"]) for record in fit(flow, rows, **settings).history]
    pace = statistics.median(after - before for before, after in pairwise(times)) / _TIMED  # the first is for warm-up
    if pace <= 0:
        raise TrainingError(f"the time of a step of {model} could not be measured: the machine is too busy")
    steps = max(_TIMED, min(int(seconds / pace), _MAX_STEPS))
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stored, json.dumps({"steps": steps, "seconds": seconds}).encode())
    return steps


def train(
    model: str, recipe: Recipe, rows: Splits, seed: int, options: Options, dataset: str, steps: int | None = None
) -> RecipeRun:
    """Train a flow of rows by a recipe, for at most ``steps`` steps, or read it."""
    torch.manual_seed(seed)
    run = RecipeRun(dataset, model, seed, recipe, options, build(model, recipe, rows.train.shape[-1]))
    run.train(torch.from_numpy(rows.train), torch.from_numpy(rows.val), rows, steps)
    return run
