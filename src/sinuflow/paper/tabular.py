"""Test NLL of real tables: the paper's recipe, the same flow trained with what is known today, and others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..data.benchmarks import BENCHMARKS, Splits, load_benchmark, rows_present
from ..errors import ArgumentError
from ..files import write_atomically
from .items import Options
from .recipes import recipes
from .record import Figure, hardware, read_record
from .tabular_table import table
from .training import PEERS, chosen_models, folder_of, score, steps_for, train

METRIC = "test NLL, nats"
#: The paper's table, Sinusoidal Flow.
PAPER = {"power": -0.59, "gas": -12.15, "hepmass": 16.10, "miniboone": 9.25, "bsds300": -156.75}
#: Rows of each split, and steps, of smaller runs.
_ROWS = {"full": None, "quick": 20_000, "smoke": 400}
_STEPS = {"full": None, "quick": 300, "smoke": 40}


def run(options: Options) -> Iterator[Figure]:
    """Train every model on every set with every seed; each is a figure by itself, and seeds are joined."""
    chosen = {}
    for name in options.sets or _present(options):
        models = chosen_models(name, recipes(name), options)
        if options.data is None or rows_present(name, options.data) is None:
            load_benchmark(name, options.data)  # says what is missing, before anything is trained
        chosen[name] = models
    for name, models in chosen.items():
        rows = load_benchmark(name, options.data)
        for model in models:
            for seed in options.seeds:
                yield _one(name, model, rows, seed, options)
                _write_table(options)


def _present(options: Options) -> list[str]:
    """The sets that are there, if none were named."""
    found = [n for n in BENCHMARKS if options.data is not None and rows_present(n, options.data) is not None]
    if not found:
        load_benchmark("power", options.data)  # says what to do
    missing = [name for name in PAPER if name not in found]
    if missing:
        options.say(f"not there, and left out: {', '.join(missing)}; see `sinuflow data list`")
    return found


def _one(name: str, model: str, rows: Splits, seed: int, options: Options) -> Figure:
    recipe = recipes(name)[model]
    if recipe.as_long_as is not None and options.size == "full":
        seconds = _seconds_of(name, recipe.as_long_as, options)
        steps = steps_for(seconds, model, recipe, rows, folder_of(options, name))
        recipe = replace(recipe, training=recipe.training | {"steps": steps})
    comparable = _comparable(name, model, rows, options)
    rows = _smaller(rows, _ROWS[options.size])
    trained = train(model, recipe, rows, seed, folder_of(options, name), _STEPS[options.size])
    found = score(trained.flow, rows.test, options.device)
    return Figure(
        set=name,
        metric=METRIC,
        model=model,
        values={seed: found.nll},
        paper=PAPER.get(name) if comparable.startswith("yes") else None,
        rows=len(rows.test),
        steps=trained.steps,
        seconds=trained.seconds,
        hardware=trained.hardware,
        comparable=comparable,
        extra={
            "validation": {str(seed): trained.best_nll},
            "best_step": {str(seed): trained.best_step},
            "standard_error_over_rows": {str(seed): found.error},
            "float32_error_max": {str(seed): found.float_max},
            "float32_error_mean": {str(seed): found.float_mean},
            "size": options.size,
            "recipe": recipe.digest,
        },
    )


def _comparable(name: str, model: str, rows: Splits, options: Options) -> str:
    """Whether the figure may stand beside that of the paper's flow, and with which words."""
    if options.size != "full":
        return "no: a smaller run"
    if model in PEERS:
        return "no: another flow"
    if tuple(len(part) for part in rows) != BENCHMARKS[name].sizes:
        return "no: other rows than the published ones"
    told = BENCHMARKS[name].comparable
    return told if model == "paper" or not told.startswith("yes") else f"{told}; trained otherwise than in the paper"


def _seconds_of(name: str, model: str, options: Options) -> float:
    """What a run of another model took on this machine, on average."""
    here = hardware(options.device)
    for figure in read_record(options.out / "tabular.json"):
        if (figure["set"], figure["model"], figure.get("size"), figure["hardware"]) == (name, model, "full", here):
            return float(figure["seconds"]) / len(figure["seeds"])
    raise ArgumentError(
        f"run {name} with --model {model} first, on this machine: the others are to take as long, and no longer"
    )


def _smaller(rows: Splits, most: int | None) -> Splits:
    return rows if most is None else Splits(*(part[:most] for part in rows))


def _write_table(options: Options) -> None:
    found = read_record(options.out / "tabular.json")
    write_atomically(options.out / "tabular.md", table(found).encode())
