"""What can be reproduced."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import ArgumentError
from ..files import lock_beside, locked
from ..training.fit import find_device
from .record import Figure, read_record, write_record

#: "full" is what is published; "quick" is for a laptop; "smoke" only shows that everything works.
Size = Literal["full", "quick", "smoke"]


@dataclass(frozen=True)
class Options:
    """How to run an item.

    Attributes:
        out: the folder for pictures, tables and records.
        size: of the run.
        device: "cpu" or "cuda"; "auto" takes a GPU if there is one.
        seeds: to train with.
        data: the folder of the benchmark sets.
        sets: only these, of items with several; all by default.
        models: only these, of items with several; all by default.
        runs: a folder for checkpoints: an interrupted run goes on from there.
        force: whether the figures of a larger run may be replaced by those of a smaller one.
        progress: whether to show it.
        command: that is recorded.
    """

    out: Path
    size: Size = "full"
    device: str = "auto"
    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    sets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    runs: Path | None = None
    force: bool = False
    progress: bool = True
    command: str = ""

    def say(self, text: str) -> None:
        """Tell whoever is watching."""
        if self.progress:
            print(f"note: {text}", file=sys.stderr)  # noqa: T201

    def of(self, *, full: Any, quick: Any, smoke: Any) -> Any:
        """Which of three things belongs to the size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper.

    Attributes:
        name: for the command.
        paper: what it is in the paper.
        shows: what it shows.
        cpu: how long the quick run takes on two cores of a CPU.
        gpu: how long all of it takes on an H200.
        takes: which options mean something to it.
        after: the item whose trained flows it needs.
    """

    name: str
    paper: str
    shows: str
    cpu: str
    gpu: str
    takes: tuple[str, ...] = ()
    after: str | None = None

    @property
    def run(self) -> Callable[[Options], Iterable[Figure]]:
        """The code, which is imported when it is needed."""
        run: Callable[[Options], Iterable[Figure]] = import_module(f".{self.name}", __package__).run
        return run


_ALL = ("sets", "models", "seeds", "runs")

ITEMS = {
    item.name: item
    for item in (
        Item("transformer", 'Figure "sinusoidal"', "tau and its derivative", "2 s", "2 s"),
        Item(
            "gaussians", 'Figure "7gaussians"', "seven Gaussians by D-scales alone, beside an MAF", "1 min", "2 min",
            ("models", "seeds", "runs"),
        ),
        Item("shapes", 'Figure "shapes"', "toy densities: true, learned, samples", "9 min", "3 min", _ALL),
        Item("tabular", 'Table "uci_results"', "test NLL of real tables", "15 min", "1 h", (*_ALL, "data")),
        Item("ldu", 'Figure "ldu"', "one LDU block and a flow, drawn from the object", "2 s", "2 s"),
        Item(
            "contraction", "Proposition 1", "Lipschitz constants, and iterations of both solvers", "1 min", "5 min",
            ("sets", "models", "seeds"),
        ),
        Item(
            "images", 'Table "mnist_cifar10"', "test bits per dimension of images", "7 min", "45 min", (*_ALL, "data"),
        ),
        Item(
            "samples", "Not in the paper", "samples of trained flows beside test images", "10 s", "1 min",
            (*_ALL, "data"), after="images",
        ),
        Item(
            "reconstruction", "Figure of the appendix", "images found again by Algorithm 1 and the certified solver",
            "20 s", "1 min", (*_ALL, "data"), after="images",
        ),
        Item(
            "runtime", 'Figure "mnist_cifar10"', "seconds to generate and to reconstruct CIFAR-10 images", "20 s",
            "1 min", (*_ALL, "data"), after="images",
        ),
    )
}  # fmt: skip


def reproduce(name: str, options: Options) -> list[dict[str, Any]]:
    """Run one item, write what it found, and return that as it is recorded.

    Example:
        >>> import tempfile
        >>> figures = reproduce("transformer", Options(Path(tempfile.mkdtemp()), "smoke", progress=False))
        >>> figures[0]["set"]
        'footnote'
    """
    if name not in ITEMS:
        raise ArgumentError(f"there is no item {name!r}; choose one of {', '.join(ITEMS)}")
    item = ITEMS[name]
    defaults = Options(options.out)
    for option in (*_ALL, "data"):
        if option not in item.takes and getattr(options, option) != getattr(defaults, option):
            raise ArgumentError(f"{name} has no choice of {option}")
    device = str(find_device(options.device))
    command = options.command or f"sinuflow reproduce {name}"
    path = options.out / f"{name}.json"
    _refuse_to_shrink(path, options)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str, str], None] = {}
    start = time.perf_counter()
    with locked(lock_beside(path), path):
        for figure in item.run(replace(options, device=device, command=command)):
            # Each is written when it is done: a long run may be interrupted.
            seconds = time.perf_counter() - start
            timed = figure if figure.seconds is not None else replace(figure, seconds=seconds)
            write_record(path, [timed], command, device)
            found[figure.key] = None
    return [stored for stored in read_record(path) if (stored["set"], stored["metric"], stored["model"]) in found]


def _refuse_to_shrink(path: Path, options: Options) -> None:
    """A picture that took an hour is not replaced by one that took seconds."""
    order = get_args(Size)
    stored = [figure.get("size", options.size) for figure in read_record(path)]
    if not options.force and any(order.index(size) < order.index(options.size) for size in stored if size in order):
        raise ArgumentError(f"{path} holds figures of a larger run: choose another folder with --out, or add --force")
