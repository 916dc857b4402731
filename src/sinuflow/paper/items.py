"""What can be reproduced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import ArgumentError
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
    progress: bool = True
    command: str = ""

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
    """

    name: str
    paper: str
    shows: str
    cpu: str
    gpu: str

    @property
    def run(self) -> Callable[[Options], Iterable[Figure]]:
        """The code, which is imported when it is needed."""
        run: Callable[[Options], Iterable[Figure]] = import_module(f".{self.name}", __package__).run
        return run


ITEMS = {
    item.name: item
    for item in (
        Item("transformer", 'Figure "sinusoidal"', "tau and its derivative", "2 s", "2 s"),
        Item("gaussians", 'Figure "7gaussians"', "seven Gaussians by D-scales alone, beside an MAF", "2 min", "2 min"),
        Item("shapes", 'Figure "shapes"', "toy densities: true, learned, samples", "9 min", "15 min"),
        Item("tabular", 'Table "uci_results"', "test NLL of real tables", "15 min", "1 h"),
        Item("ldu", 'Figure "ldu"', "one LDU block and a flow, drawn from the object", "2 s", "2 s"),
        Item("contraction", "Proposition 1", "Lipschitz constants, and iterations of both solvers", "2 min", "2 min"),
    )
}


def reproduce(name: str, options: Options) -> list[dict[str, Any]]:
    """Run one item, and write what it found; all figures of its record.

    Example:
        >>> import tempfile
        >>> figures = reproduce("transformer", Options(Path(tempfile.mkdtemp()), "smoke", progress=False))
        >>> figures[0]["set"]
        'footnote'
    """
    if name not in ITEMS:
        raise ArgumentError(f"there is no item {name!r}; choose one of {', '.join(ITEMS)}")
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    command = options.command or f"sinuflow reproduce {name}"
    chosen = replace(options, device=device, command=command)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}.json"
    start = time.perf_counter()
    for figure in ITEMS[name].run(chosen):  # each is written as it comes: a long run may be interrupted
        seconds = time.perf_counter() - start
        timed = figure if figure.seconds is not None else replace(figure, seconds=seconds)
        write_record(path, [timed], command, device)
    return read_record(path)
