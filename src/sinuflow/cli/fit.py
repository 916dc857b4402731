"""``sinuflow fit``: learn the density of a table."""

from __future__ import annotations

import enum
import shutil
from pathlib import Path
from typing import Annotated

import typer

from ..errors import DataError, StorageError
from ..tables import TableModel, fit_table
from .files import check_output


class Conditioning(str, enum.Enum):
    """Kinds of flow."""

    full = "full"
    shift = "shift"


class Missing(str, enum.Enum):
    """What to do with rows that have missing values."""

    refuse = "refuse"
    drop = "drop"


class Device(str, enum.Enum):
    """Where to train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def command(
    data: Annotated[Path, typer.Argument(help="CSV, Parquet (a file or a folder of files) or .npy.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    context: Annotated[list[str] | None, typer.Option(help="A column to condition on; may be repeated.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    missing: Annotated[Missing, typer.Option(help="Rows with missing values.")] = Missing.refuse,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="COL=MAP", help="linear, log, logit or category for a column; may be repeated."),
    ] = None,
    conditioning: Annotated[Conditioning, typer.Option(help="Conditional waves, or the paper's flow.")] = (
        Conditioning.full
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="The most training steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the split, the weights and the row order.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.auto,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing outputs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Learn the density of a table and write it to a model file."""
    check_output(output, force)
    if report is not None:
        check_output(report, force, (".html", ".htm"))
    places = [path.resolve() for path in (data, output, report) if path is not None]
    if len(set(places)) < len(places):
        raise StorageError("the table, the model and the report must be different files")
    run = checkpoint_folder(output)
    if run.exists() and not resume:
        if not force:
            raise StorageError(
                f"{run} holds an interrupted run of this model: go on with --resume, or start anew with --force"
            )
        shutil.rmtree(run)
    try:
        model = fit_table(
            data,
            context=context,
            drop=drop,
            missing=missing.value,
            maps=_maps(map_ or []),
            conditioning=conditioning.value,
            steps=steps,
            seed=seed,
            device=device.value,
            checkpoint=run,
            resume=resume,
            progress=not quiet,
        )
    except KeyboardInterrupt:
        if (run / "checkpoint.safetensors").exists():
            typer.echo(f"\ninterrupted; the run is safe in {run}. Go on with the same command and --resume.", err=True)
        else:
            shutil.rmtree(run, ignore_errors=True)
            typer.echo("\ninterrupted before the training began", err=True)
        raise typer.Exit(130) from None
    except Exception:
        # A run that never came to a checkpoint leaves nothing behind.
        if run.is_dir() and not (run / "checkpoint.safetensors").exists():
            shutil.rmtree(run, ignore_errors=True)
        raise
    model.save(output)
    shutil.rmtree(run, ignore_errors=True)
    _summarise(model, output)
    if report is not None:
        from .report import write_report

        write_report(model, data, report)


def checkpoint_folder(output: Path) -> Path:
    """Where a run is kept until its model is written."""
    return output.with_name(output.name + ".run")


def _maps(wishes: list[str]) -> dict[str, str]:
    maps = {}
    for wish in wishes:
        name, found, kind = wish.rpartition("=")
        if not found:
            raise DataError(f"--map takes COLUMN=MAP, such as --map income=log; got {wish!r}")
        maps[name] = kind
    return maps


def _summarise(model: TableModel, output: Path) -> None:
    facts = model.facts
    typer.echo(
        f"{facts['table']}: {facts['used_rows']:,} rows, {len(model.preprocessor.features)} columns modelled"
        + (f", {len(model.preprocessor.given)} given" if model.preprocessor.given else "")
        + f"; trained {facts['steps']:,} steps in {facts['seconds']:.0f} s, the best at step {facts['best_step']:,}"
    )
    typer.echo(f"model: {output}")
