"""Test NLL of real tables: the paper's recipe, the same flow trained with what is known today, and others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..data.benchmarks import BENCHMARKS, Splits, load_benchmark
from ..errors import ArgumentError
from .items import Options
from .recipes import recipes
from .record import Figure, read_record
from .tabular_table import table
from .training import folder_of, score, steps_for, train

METRIC = "test NLL, nats"
#: The paper's table, Sinusoidal Flow.
PAPER = {"power": -0.59, "gas": -12.15, "hepmass": 16.10, "miniboone": 9.25, "bsds300": -156.75}
#: What is run if nothing is chosen.
SETS = ("power", "bsds300", "gas-small", "hepmass-small", "miniboone-small")
#: Rows of each split, and steps, of smaller runs.
_ROWS = {"full": None, "quick": 20_000, "smoke": 400}
_STEPS = {"full": None, "quick": 300, "smoke": 40}


def run(options: Options) -> Iterator[Figure]:
    """Train every model on every set with every seed; each is a figure by itself, and seeds are joined."""
    for name in options.sets or SETS:
        known = recipes(name)
        unknown = set(options.models) - set(known)
        if unknown:
            raise ArgumentError(f"{name} has no recipe {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        rows = _smaller(load_benchmark(name, options.data), _ROWS[options.size])
        for model in options.models or known:
            for seed in options.seeds:
                yield _one(name, model, rows, seed, options)
                _write_table(options)


def _one(name: str, model: str, rows: Splits, seed: int, options: Options) -> Figure:
    recipe = recipes(name)[model]
    if recipe.as_long_as is not None and options.size == "full":
        steps = steps_for(_seconds_of(name, recipe.as_long_as, options), model, recipe, rows, options)
        recipe = replace(recipe, training=recipe.training | {"steps": steps})
    trained = train(model, recipe, rows, seed, folder_of(options, name), _STEPS[options.size])
    found = score(trained.flow, rows.test, options.device)
    whole = options.size == "full"
    comparable = BENCHMARKS[name].comparable if whole else "no: a smaller run"
    return Figure(
        set=name,
        metric=METRIC,
        model=model,
        values={seed: found.nll},
        paper=PAPER.get(name) if whole else None,
        rows=len(rows.test),
        steps=trained.steps,
        seconds=trained.seconds,
        hardware=trained.hardware,
        comparable=comparable,
        extra={
            "validation": {str(seed): trained.best_nll},
            "best_step": {str(seed): trained.best_step},
            "standard_error_over_rows": found.error,
            "float32_error_max": found.float_max,
            "float32_error_mean": found.float_mean,
            "size": options.size,
        },
    )


def _seconds_of(name: str, model: str, options: Options) -> float:
    """What a run of another model took, on average."""
    for figure in read_record(options.out / "tabular.json"):
        if (figure["set"], figure["model"], figure.get("size")) == (name, model, "full"):
            return float(figure["seconds"]) / len(figure["seeds"])
    raise ArgumentError(f"run {name} with --model {model} first: the others are to take as long, and no longer")


def _smaller(rows: Splits, most: int | None) -> Splits:
    return rows if most is None else Splits(*(part[:most] for part in rows))


def _write_table(options: Options) -> None:
    found = read_record(options.out / "tabular.json")
    (options.out / "tabular.md").write_text(table(found))
