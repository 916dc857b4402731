"""Tables that compare models: each model is trained on each dataset with each seed, and scored on the test split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..data.datasets import Dataset, Splits, find
from ..models.defaults import Recipe
from .items import Options
from .recipes import recipes
from .record import Result
from .training import PEERS, RecipeRun, chosen_models, is_present

#: A run, its validation score, and the scores of all test examples in float32 and of the first ones in float64.
Evaluation = tuple[RecipeRun, float, Tensor, Tensor]


@dataclass(frozen=True)
class Comparison:
    """A comparison of models."""

    metric: str  # of the test split
    paper: Mapping[str, float]  # the paper's values by dataset
    datasets: Mapping[str, Dataset]
    #: The splits of a dataset for the size of the run, or an error that says where to get them.
    load: Callable[[str, Options], Splits]
    #: Trains a model on a dataset with a seed, and scores it.
    evaluate: Callable[[str, str, Recipe, Splits, int, Options], Evaluation]
    #: The metric of independent pixels, for images.
    baseline: Callable[[Splits], float] | None = None

    def run(self, options: Options) -> Iterator[Result]:
        """Yield the result of every run; those of several seeds are merged in the record."""
        models = {}
        for name in options.datasets or self._available(options):
            dataset = find(self.datasets, name, "dataset")
            models[name] = chosen_models(name, None, options)
            if not is_present(dataset, options):
                self.load(name, options)  # fails before anything is trained
        for name, chosen in models.items():
            splits = self.load(name, options)
            rows = len(splits.test)
            if self.baseline is not None:
                model, value = "independent pixels", self.baseline(splits)
                reason, size = self.comparable(name, model, splits, options), {"size": options.size}
                yield Result(name, self.metric, model, {None: value}, rows=rows, comparable=reason, extra=size)
            for (model, recipe), seed in itertools.product(chosen.items(), options.seeds):
                run, validation, test, exact = self.evaluate(name, model, recipe, splits, seed, options)
                error = (test[: len(exact)] - exact).abs()
                by_seed = {
                    "validation": validation,
                    "best_step": run.outcome["best_step"],
                    f"standard_error_over_{self.datasets[name].examples}": float(test.std()) / rows**0.5,
                    "float32_error_max": float(error.max()),
                    "float32_error_mean": float(error.mean()),
                }
                extra = {field: {str(seed): value} for field, value in by_seed.items()}
                reason = self.comparable(name, model, splits, options)
                paper = self.paper.get(name) if reason.startswith("yes") else None
                metrics = {self.metric: float(test.mean())}
                yield from run.results(metrics, reason, extra, paper=paper, rows=rows)

    def _available(self, options: Options) -> list[str]:
        present = [name for name, dataset in self.datasets.items() if is_present(dataset, options)]
        if not present:
            self.load(next(iter(self.paper)), options)
        missing = [name for name in self.paper if name not in present]
        if missing:
            options.say(f"not found, and left out: {', '.join(missing)}; see `sinuflow data list`")
        return present

    def comparable(self, name: str, model: str, splits: Splits, options: Options) -> str:
        """Whether a result is comparable with the paper's: "yes" or "no", and a qualification."""
        dataset, known = self.datasets[name], recipes(name)
        if options.size != "full":
            return "no: a smaller run"
        if model in PEERS or model not in known:
            return "no: another model"
        if tuple(len(part) for part in splits) != dataset.sizes:
            return f"no: other {dataset.examples} than the published ones"
        if model == "paper" or not dataset.comparable.startswith("yes"):
            return dataset.comparable
        same = known["paper"].flow | known[model].flow == known["paper"].flow
        return f"{dataset.comparable}; other {'' if same else 'architecture and '}training settings"
