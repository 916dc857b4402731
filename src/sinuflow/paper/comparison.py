"""Tables that compare models: each model is trained on each dataset with each seed, and scored on the test split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..files import write_atomically
from .items import Options
from .recipes import Recipe
from .record import Result, read_record
from .tables import TABLES
from .training import Score, Trained, chosen_models


class Evaluation(NamedTuple):
    """A trained model with its scores; ``recipe`` is the one that was followed."""

    trained: Trained
    recipe: Recipe
    validation: float
    test: Score


@dataclass(frozen=True)
class Comparison:
    """A comparison of models.

    Attributes:
        item: its name.
        metric: of the test split.
        examples: "rows" or "images".
        paper: the paper's values by dataset.
        datasets: names of all datasets.
        is_present: whether a dataset can be loaded.
        load: the splits of a dataset, or an error that says where to get them.
        evaluate: trains a model on a dataset with a seed, and scores it.
        comparable: whether a model's result on a dataset is comparable with the paper's: "yes" or "no", with a reason.
        baselines: results that need no training.
    """

    item: str
    metric: str
    examples: str
    paper: Mapping[str, float]
    datasets: Collection[str]
    is_present: Callable[[str, Options], bool]
    load: Callable[[str, Options], Any]
    evaluate: Callable[[str, str, Recipe, Any, int, Options], Evaluation]
    comparable: Callable[[str, str, Any, Options], str]
    baselines: Callable[[str, Any, Options], Iterable[Result]] = lambda *_: ()

    def run(self, options: Options) -> Iterator[Result]:
        """Yield the result of every run; those of several seeds are merged in the record."""
        models = {}
        for name in options.datasets or self._available(options):
            models[name] = chosen_models(name, None, options)
            if not self.is_present(name, options):
                self.load(name, options)  # fails before anything is trained
        for name, chosen in models.items():
            splits = self.load(name, options)
            yield from self.baselines(name, splits, options)
            for (model, recipe), seed in itertools.product(chosen.items(), options.seeds):
                trained, followed, validation, test = self.evaluate(name, model, recipe, splits, seed, options)
                by_seed = {
                    "validation": validation,
                    "best_step": trained.best_step,
                    f"standard_error_over_{self.examples}": test.standard_error,
                    "float32_error_max": test.float32_max,
                    "float32_error_mean": test.float32_mean,
                }
                extra = {field: {str(seed): value} for field, value in by_seed.items()}
                comparable = self.comparable(name, model, splits, options)
                paper = self.paper.get(name) if comparable.startswith("yes") else None
                fields = trained.fields(options, followed, comparable, **extra)
                yield Result(name, self.metric, model, {seed: test.mean}, paper, len(splits.test), **fields)
                table = TABLES[self.item](read_record(options.out / f"{self.item}.json"))
                write_atomically(options.out / f"{self.item}.md", table.encode())

    def _available(self, options: Options) -> list[str]:
        present = [name for name in self.datasets if self.is_present(name, options)]
        if not present:
            self.load(next(iter(self.paper)), options)
        missing = [name for name in self.paper if name not in present]
        if missing:
            options.say(f"not found, and left out: {', '.join(missing)}; see `sinuflow data list`")
        return present
