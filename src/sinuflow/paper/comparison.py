"""Tables that compare models: each model is trained on each dataset with each seed, and scored on the test split."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..files import write_atomically
from . import tables
from .items import Options
from .recipes import Recipe
from .record import Result, read_record
from .training import Score, Trained, chosen_models


class Evaluation(NamedTuple):
    """A trained model with its scores; ``recipe`` is the one that was followed."""

    trained: Trained
    recipe: Recipe
    validation: float
    test: Score


class Comparison(ABC):
    """A comparison of models.

    Attributes:
        item: its name.
        metric: of the test split.
        examples: "rows" or "images".
        paper: the paper's values by dataset.
        datasets: descriptions of all datasets by name.
    """

    item: str
    metric: str
    examples: str
    paper: Mapping[str, float]
    datasets: Mapping[str, Any]

    @abstractmethod
    def is_present(self, name: str, options: Options) -> bool:
        """Whether a dataset can be loaded."""

    @abstractmethod
    def load(self, name: str, options: Options) -> Any:
        """The splits of a dataset, or an error that says where to get them."""

    @abstractmethod
    def evaluate(self, name: str, model: str, recipe: Recipe, splits: Any, seed: int, options: Options) -> Evaluation:
        """Train a model, and score it."""

    @abstractmethod
    def comparable(self, name: str, model: str, splits: Any, options: Options) -> str:
        """Whether a result is comparable with the paper's: "yes" or "no", with a reason."""

    def baselines(self, name: str, splits: Any, options: Options) -> Iterable[Result]:
        """Results that need no training."""
        return ()

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
                yield self._result(name, model, recipe, splits, seed, options)
                table = tables.TABLES[self.item](read_record(options.out / f"{self.item}.json"))
                write_atomically(options.out / f"{self.item}.md", table.encode())

    def _available(self, options: Options) -> list[str]:
        found = [name for name in self.datasets if self.is_present(name, options)]
        if not found:
            self.load(next(iter(self.paper)), options)
        missing = [name for name in self.paper if name not in found]
        if missing:
            options.say(f"not found, and left out: {', '.join(missing)}; see `sinuflow data list`")
        return found

    def _result(self, name: str, model: str, recipe: Recipe, splits: Any, seed: int, options: Options) -> Result:
        trained, recipe, validation, test = self.evaluate(name, model, recipe, splits, seed, options)
        comparable = self.comparable(name, model, splits, options)
        by_seed = {
            "validation": validation,
            "best_step": trained.best_step,
            f"standard_error_over_{self.examples}": test.standard_error,
            "float32_error_max": test.float32_max,
            "float32_error_mean": test.float32_mean,
        }
        extra = {field: {str(seed): value} for field, value in by_seed.items()}
        return Result(
            name,
            self.metric,
            model,
            {seed: test.mean},
            paper=self.paper.get(name) if comparable.startswith("yes") else None,
            rows=len(splits.test),
            **trained.fields(options, recipe, comparable, **extra),
        )
