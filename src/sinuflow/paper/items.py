"""The figures and tables of the paper that can be reproduced, and how to run one of them."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from ..data.datasets import find
from ..errors import ArgumentError
from ..files import lock_beside, locked, write_atomically
from ..training.fit import find_device
from .record import read_record, write_record
from .tables import TABLES

#: "full" is the published run, "quick" takes minutes on a laptop, and "smoke" only checks that everything works.
Size = Literal["full", "quick", "smoke"]


@dataclass(frozen=True)
class Options:
    """How to run an item."""

    out: Path  # the folder for figures, tables and records
    size: Size = "full"
    device: str = "auto"  # or "cpu" or "cuda"
    seeds: tuple[int, ...] = (0,)  # of the training runs
    data: Path | None = None  # the folder of the benchmark datasets
    datasets: tuple[str, ...] = ()  # by default all that the item has
    models: tuple[str, ...] = ()  # by default all that the item has
    runs: Path | None = None  # a folder for checkpoints; an interrupted run resumes from there
    force: bool = False  # whether results of a larger run may be replaced by those of a smaller one
    progress: bool = True
    command: str = ""  # recorded with the results

    def say(self, text: str) -> None:
        """Print a note, if progress is shown."""
        if self.progress:
            print(f"note: {text}", file=sys.stderr)  # noqa: T201

    def of(self, *, full: Any, quick: Any, smoke: Any) -> Any:
        """The value for this size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper, reproduced by the function ``run`` of the module of that name."""

    name: str
    paper: str  # its name in the paper
    shows: str
    cpu: str  # the duration of the quick run on two CPU cores
    gpu: str  # the duration of the full run on an H200
    takes: tuple[str, ...] = ()  # the options that apply to it
    after: str | None = None  # the item whose trained flows it needs


#: Options that apply to some items only, with their names on the command line.
_CHOICES = {"datasets": "--set", "models": "--model", "seeds": "--seed", "runs": "--runs", "data": "--data"}
_ALL, _TRAINED = ("datasets", "models", "seeds", "runs"), tuple(_CHOICES)

ITEMS = {
    item.name: item
    for item in (
        Item("transformer", 'Figure "sinusoidal"', "tau and its derivative", "2 s", "2 s"),
        Item(
            "gaussians", 'Figure "7gaussians"', "seven Gaussians by D-scales alone, beside an MAF", "1 min", "2 min",
            ("models", "seeds", "runs"),
        ),
        Item("shapes", 'Figure "shapes"', "toy densities: true, learned, samples", "9 min", "3 min", _ALL),
        Item("tabular", 'Table "uci_results"', "test NLL of tabular data", "15 min", "1 h", _TRAINED),
        Item("ldu", 'Figure "ldu"', "one LDU block and a flow, drawn from the object", "2 s", "2 s"),
        Item(
            "contraction", "Proposition 1", "Lipschitz constants, and iterations of both solvers", "1 min", "5 min",
            ("datasets", "models", "seeds"),
        ),
        Item("images", 'Table "mnist_cifar10"', "test bits per dimension of images", "7 min", "45 min", _TRAINED),
        Item(
            "samples", "Not in the paper", "samples of trained flows beside test images", "10 s", "1 min",
            _TRAINED, after="images",
        ),
        Item(
            "reconstruction", "Figure of the appendix", "reconstruction error of Algorithm 1 and the certified solver",
            "20 s", "1 min", _TRAINED, after="images",
        ),
        Item(
            "runtime", 'Figure "mnist_cifar10"', "seconds to generate and to reconstruct CIFAR-10 images", "20 s",
            "1 min", _TRAINED, after="images",
        ),
    )
}  # fmt: skip


def reproduce(name: str, options: Options) -> list[dict[str, Any]]:
    """Run one item, write its results, and return the recorded entries.

    Example:
        >>> import tempfile
        >>> entries = reproduce("transformer", Options(Path(tempfile.mkdtemp()), "smoke", progress=False))
        >>> entries[0]["set"]
        'footnote'
    """
    item, defaults = find(ITEMS, name, "item"), Options(options.out)
    for option, flag in _CHOICES.items():
        if option not in item.takes and getattr(options, option) != getattr(defaults, option):
            raise ArgumentError(f"{name} does not take {flag}")
    device, command = str(find_device(options.device)), options.command or f"sinuflow reproduce {name}"
    path = options.out / f"{name}.json"
    _refuse_to_shrink(path, options)
    options.out.mkdir(parents=True, exist_ok=True)
    keys, start = set(), time.perf_counter()
    with locked(lock_beside(path), path):
        for result in import_module(f".{name}", __package__).run(replace(options, device=device)):
            # Written one by one, because a long run may be interrupted.
            seconds = time.perf_counter() - start
            timed = result if result.seconds is not None else replace(result, seconds=seconds)
            entries = write_record(path, [timed], command, device)
            if name in TABLES:
                write_atomically(path.with_suffix(".md"), TABLES[name](entries).encode())
            keys.add(result.key)
    return [entry for entry in read_record(path) if (entry["set"], entry["metric"], entry["model"]) in keys]


def _refuse_to_shrink(path: Path, options: Options) -> None:
    """Keep a run of seconds from replacing the results of a run of hours."""
    order = get_args(Size)
    stored = [entry.get("size", options.size) for entry in read_record(path)]
    if not options.force and any(order.index(size) < order.index(options.size) for size in stored if size in order):
        raise ArgumentError(f"{path} holds results of a larger run: choose another folder with --out, or add --force")
