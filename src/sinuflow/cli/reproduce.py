"""``sinuflow reproduce``: reproduce a figure or table of the paper."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import ArgumentError
from ..paper import ITEMS, Options, reproduce
from .signals import Stopped
from .terminal import echo


def command(
    item: Annotated[str | None, typer.Argument(help="A figure or table of --list.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the figures and tables, with run times.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for results.")] = Path("results"),
    data: Annotated[Path | None, typer.Option(help="The folder of the benchmark datasets.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run, for a laptop.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The smallest run, to test that everything works.")] = False,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="A training seed; may be repeated.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Only this dataset; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")] = None,
    runs: Annotated[Path | None, typer.Option(help="A folder for checkpoints; the same command resumes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Let a smaller run replace a larger one's results.")] = False,
) -> None:
    """Reproduce a figure or table of the paper: write pictures, tables and a JSON record."""
    if show or item is None:
        _show_items()
        return
    if quick and smoke:
        raise ArgumentError("choose one of --quick and --smoke")
    size: Literal["smoke", "quick", "full"] = "smoke" if smoke else "quick" if quick else "full"
    words = ["sinuflow", "reproduce", item] + [f"--{size}"] * (size != "full")
    for name, values in {"--seed": seeds, "--set": sets, "--model": models}.items():
        words += [word for value in values or () for word in (name, str(value))]
    words += ["--data", "DIR"] * (data is not None) + ["--device", device] * (device != "auto")
    options = Options(
        out=out,
        size=size,
        device=device,
        seeds=tuple(seeds or (0,)),
        data=data,
        datasets=tuple(sets or ()),
        models=tuple(models or ()),
        runs=runs,
        force=force,
        command=shlex.join(words),  # without the folders of this machine
    )
    try:
        entries = reproduce(item, options)
    except Stopped:
        if runs is not None:
            with suppress(OSError):  # the terminal may be closed
                echo(f"the runs are saved in {runs}: resume them with the same command", err=True)
        raise
    for entry in entries:
        echo(_line(entry))
    echo(f"written to {out}")


def _show_items() -> None:
    width = max(len(name) for name in ITEMS)
    for item in ITEMS.values():
        echo(f"{item.name:{width}}  {item.paper}: {item.shows}")
        after = f", after {item.after} with the same --runs" if item.after else ""
        echo(f"{'':{width}}  on a CPU with --quick {item.cpu}, on a GPU {item.gpu}{after}")


def _line(entry: dict[str, Any]) -> str:
    value = "NaN" if entry["value"] is None else f"{entry['value']:.4g}"
    spread = "" if entry["spread"] is None else f" +- {entry['spread']:.2g}"
    paper = "" if entry["paper"] is None else f" (paper: {entry['paper']:g})"
    return f"{entry['set']}, {entry['model']}: {entry['metric']} {value}{spread}{paper}"
