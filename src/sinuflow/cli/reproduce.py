"""``sinuflow reproduce``: a figure or table of the paper, run again."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ArgumentError
from ..paper import ITEMS, Options, reproduce
from .signals import Stopped
from .terminal import echo


def command(
    item: Annotated[str | None, typer.Argument(help="What to run: see --list.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show what there is, and how long it takes.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for results.")] = Path("results"),
    data: Annotated[Path | None, typer.Option(help="The folder of the benchmark sets.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run, for a laptop.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The smallest run, to see that everything works.")] = False,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="To train with; may be repeated.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Only this set; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")] = None,
    runs: Annotated[Path | None, typer.Option(help="A folder for checkpoints: run again, and it goes on.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Let a smaller run replace the figures of a larger one.")
    ] = False,
) -> None:
    """Run a figure or table of the paper again, and write pictures, tables and a JSON record."""
    if show or item is None:
        _show_items()
        return
    if quick and smoke:
        raise ArgumentError("choose one of --quick and --smoke")
    options = Options(
        out=out,
        size="smoke" if smoke else "quick" if quick else "full",
        device=device,
        seeds=tuple(seeds or (0,)),
        data=data,
        datasets=tuple(sets or ()),
        models=tuple(models or ()),
        runs=runs,
        force=force,
        command=shlex.join(["sinuflow", *_without_places(sys.argv[1:])]),
    )
    try:
        figures = reproduce(item, options)
    except Stopped:
        if runs is not None:
            with suppress(OSError):  # the terminal may be gone
                echo(f"the runs are saved in {runs}: resume them with the same command", err=True)
        raise
    for figure in figures:
        echo(_line(figure))
    echo(f"written to {out}")


def _show_items() -> None:
    width = max(len(name) for name in ITEMS)
    for item in ITEMS.values():
        echo(f"{item.name:{width}}  {item.paper}: {item.shows}")
        after = f", once {item.after} has left its flows in --runs" if item.after else ""
        echo(f"{'':{width}}  on a CPU with --quick {item.cpu}, on a GPU {item.gpu}{after}")


def _line(figure: dict[str, Any]) -> str:
    value = "not a number" if figure["value"] is None else f"{figure['value']:.4g}"
    spread = "" if figure["spread"] is None else f" +- {figure['spread']:.2g}"
    paper = "" if figure["paper"] is None else f" (paper: {figure['paper']:g})"
    return f"{figure['set']}, {figure['model']}: {figure['metric']} {value}{spread}{paper}"


def _without_places(words: list[str]) -> list[str]:
    """The command without where its files are, which is of no interest to others."""
    kept, skip = list[str](), False
    for word in words:
        name = word.split("=")[0] if word.startswith("--") else word[:2]
        if not skip and name in _PLACES:
            skip = word == name
            kept += _PLACES[name]
        elif not skip:
            kept.append(word)
        else:
            skip = False
    return kept


#: Options that say where files are, and what is recorded in their place.
_PLACES = {"--out": [], "-o": [], "--runs": [], "--data": ["--data", "DIR"]}
